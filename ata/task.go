package ata

import "lunlab/lun"

// Task is a command on its way through a [Drive]. Who issues it owns it before and
// after, and the drive in between. A Task can be used again when it has ended, as it
// is: what the drive looks at is the request.
type Task struct {
	// The request. DataOut is the data from the host, DataIn the room for data to it,
	// as scatter lists.
	Taskfile
	DataOut, DataIn [][]byte

	// Done, if not nil, is called when a task that was given to [Drive.Issue] has ended.
	// No part of the drive is locked then.
	Done func(*Task)

	// Ending says how the task ended, Answer with what.
	Ending Ending
	Answer Registers

	// Moved is how many bytes of data the drive had for the host or asked it for. Above
	// what DataIn or DataOut have, the host's buffer was too short: what fitted was
	// moved to it, and nothing was taken from it.
	Moved uint64

	// Halted says that the drive refused the task only because an earlier queued
	// command had failed, and nobody has read the NCQ Command Error log since. A host
	// has seen that failure before this one.
	Halted bool

	command *command
	cleared bool            // under Drive.mu: another one's error or a reset took it down
	down    <-chan struct{} // closed then
	drq     uint64          // bytes of a DRQ data block
}

// Failed tells whether the task ended with an error or not at all.
func (t *Task) Failed() bool {
	return t.Ending == NoAnswer || t.Answer.Status&(StatusERR|StatusDF) != 0
}

// failure is how a command fails. The zero value is that it didn't.
type failure struct {
	err   byte // bits of Error, 0 with fault or without a failure
	fault bool // device fault
	lba   uint64
	has   bool // lba is the first block that couldn't be accessed

	unlogged bool // it isn't for the error logs

	// What there is to say in SCSI's words (ACS-4 9.x, SAT-5 table 11).
	key  lun.SenseKey
	code uint16
}

func (f *failure) failed() bool { return f.err != 0 || f.fault }

var (
	// noCommand is for a command that the drive doesn't have.
	noCommand = failure{err: ErrorABRT, key: lun.IllegalRequest, code: lun.ASCInvalidCommandOperationCode}

	// badField is for a field that has what it doesn't take.
	badField = failure{err: ErrorABRT, key: lun.IllegalRequest, code: lun.ASCInvalidFieldInCDB}

	// outOfOrder is for a command that comes when it can't.
	outOfOrder = failure{err: ErrorABRT, key: lun.AbortedCommand, code: lun.ASCCommandSequenceError}

	// shortData is for data that the host doesn't send.
	shortData = failure{err: ErrorABRT, key: lun.AbortedCommand, code: ascInitiatorShort}

	// locked is for what security keeps from the host.
	locked = failure{err: ErrorABRT, key: lun.DataProtect, code: ascNotAuthorized}
)

// broken is for what isn't the command's fault.
var broken = failure{fault: true, key: lun.HardwareError, code: lun.ASCInternalTargetFailure}

// Additional sense codes that only an ATA device has use for.
const (
	ascNotAuthorized  = 0x7471 // logical unit access not authorized
	ascInitiatorShort = 0x4b0d // data underflow
)

// notFound is for blocks that aren't there, of which lba is the first.
func notFound(lba uint64) failure {
	return failure{err: ErrorIDNF, lba: lba, has: true, key: lun.IllegalRequest, code: lun.ASCLBAOutOfRange}
}

func uncorrectable(lba uint64, code uint16) failure {
	return failure{err: ErrorUNC, lba: lba, has: true, key: lun.MediumError, code: code}
}

// reply answers with data, as far as there is room.
func (t *Task) reply(data []byte) {
	t.Moved = uint64(len(data))
	for _, b := range t.DataIn {
		data = data[copy(b, data):]
	}
}

// gather takes n bytes of data-out in one piece, which is good until the task ends.
func (t *Task) gather(n uint64) ([]byte, failure) {
	t.Moved = n
	c := lun.Command{DataOut: t.DataOut}
	b := c.Gather(n)
	if uint64(len(b)) < n {
		return nil, shortData
	}
	return b, failure{}
}

func total(list [][]byte) (n uint64) {
	for _, b := range list {
		n += uint64(len(b))
	}
	return n
}
