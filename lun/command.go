// Package lun is the SCSI device server: it decodes a CDB, does what the
// standards say, and answers with a status, data and sense.
//
// A transport (iSCSI, TCMU, vhost-user) turns what it receives into a
// [Command], hands it to a [Unit], and carries the answer back. The unit knows
// nothing of transports; a transport knows nothing of disks.
package lun

// Status is a SCSI status code (SAM-5 5.3.1).
type Status uint8

const (
	Good                Status = 0x00
	CheckCondition      Status = 0x02
	ConditionMet        Status = 0x04
	Busy                Status = 0x08
	ReservationConflict Status = 0x18
	TaskSetFull         Status = 0x28
	ACAActive           Status = 0x30
	TaskAborted         Status = 0x40
)

// TaskAttribute is a command's place among the others (SAM-5 8.6).
type TaskAttribute uint8

const (
	Simple TaskAttribute = iota
	Ordered
	HeadOfQueue
	ACA
)

// Command is one SCSI command on its way through a logical unit, the arguments
// and results of SAM-5's Execute Command procedure call (5.1).
//
// The transport fills in the request and owns the Command before and after
// [Unit.Execute]; the unit owns it in between and keeps no reference to any
// part of it afterwards. A Command may be used again after [Command.Reset], so
// that a transport need not allocate one for each command it receives.
type Command struct {
	// Nexus is the path that the command came by. Units compare it by pointer
	// for unit attentions and by its names for reservations. Never nil.
	Nexus *Nexus
	Attr  TaskAttribute

	// Priority is the command priority, 1 (first) to 15, or 0 for none
	// (SAM-5 8.7).
	Priority uint8

	// CDB holds the command descriptor block: 6 to 260 bytes. It may be longer
	// than the operation code asks for (a transport pads to 16); a unit reads
	// only what the operation code says.
	CDB []byte

	// DataOut is the data from the initiator, DataIn the room for data to it,
	// as scatter lists. Their sums are what the initiator was ready to
	// transfer, which may be less or more than the CDB asks for.
	DataOut, DataIn [][]byte

	// Cancel, if not nil, is closed when the task is aborted. A unit that waits
	// (a delay, a slow store) gives up then; what it answers is not sent.
	//
	// A command without one is executed by the goroutine that received it, or by
	// a caller that waits for as long as it takes. A unit that isn't always
	// [Unit.Blocking] doesn't hold it up, even if it has become so since.
	Cancel <-chan struct{}

	// Path is the way that the command came, if the transport lets it be broken.
	Path Path

	// Status is the answer. The transport may read the fields below it when
	// Execute has returned.
	Status Status

	// Sense is the sense data, empty but for CHECK CONDITION. It lies in the
	// Command and is good until the next Reset.
	Sense []byte

	// InLen counts the bytes that the unit had for the initiator: the first
	// min(InLen, len(DataIn)) were stored in DataIn. InLen above DataIn is an
	// overflow, below it an underflow; the transport reports the residual.
	InLen uint64

	// OutLen counts the bytes of data-out that the CDB asked for, likewise.
	OutLen uint64

	// AnswerAborted has the answer sent although Cancel was closed, before the
	// task management function says that it is complete: as if the abort had come
	// a moment too late (SAM-5 7.2). A transport whose initiator has no use for
	// such an answer may leave it out.
	AnswerAborted bool

	senseBuf [MaxSense]byte

	erasures uint32 // Disk.erasures when the command was let in
	counted  counted
}

// Reset clears the command for the next use. It keeps the sense buffer.
func (c *Command) Reset() {
	c.Nexus, c.Attr, c.Priority, c.CDB, c.DataOut, c.DataIn, c.Cancel, c.Path = nil, Simple, 0, nil, nil, nil, nil, nil
	c.Status, c.Sense, c.InLen, c.OutLen, c.AnswerAborted = Good, nil, 0, 0, false
}

// Fail ends the command with CHECK CONDITION and s as its sense data.
func (c *Command) Fail(s Sense) {
	c.Status = CheckCondition
	c.Sense = s.AppendFixed(c.senseBuf[:0])
}

// FailDescriptor is [Command.Fail] with the sense data in the descriptor format.
func (c *Command) FailDescriptor(s Sense) {
	c.Status = CheckCondition
	c.Sense = s.AppendDescriptor(c.senseBuf[:0])
}

// Nexus is an I_T nexus (SAM-5 4.6.5): one initiator port and one target port
// that talk. A transport makes one for each session or path and keeps it as
// long as the nexus lives.
type Nexus struct {
	// Initiator is the initiator port's TransportID (SPC-5 7.6.4), the name
	// that persistent reservations know it by.
	Initiator []byte

	// TargetPort is the relative target port identifier (SPC-5 4.3.4), 1 and up.
	TargetPort uint16

	// Sees tells which logical unit numbers of the target the nexus may reach, also
	// by a third-party copy that another unit does for it (see [DiskOptions.LUN]).
	// nil is all.
	Sees func(number uint16) bool

	// LUNsReported, if not nil, is what a unit calls, without a lock held, when it has
	// told of REPORTED LUNS DATA HAS CHANGED. The other units of the target don't then.
	LUNsReported func()

	// Functions are the task management functions that the transport can carry, as far
	// as they are fewer than the target has. 0 is all.
	Functions TaskFunctions

	// Name is for people: "iqn.2003-01.org.x,i,0x00023d000001".
	Name string
}
