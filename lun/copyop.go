package lun

import (
	"slices"
	"sync/atomic"
)

// Copy operations: what third-party copy commands have begun, and the commands
// that tell of them and end them (SPC-5 5.17.4).

var copyResultOps = []op{
	{name: "COPY OPERATION ABORT", usage: "83 1c ffffffff 000000000000000000 00", class: writes, run: (*Disk).abortCopy, when: notZoned},
	{name: "RECEIVE COPY STATUS(LID1)", usage: "84 00 ff 00000000000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyStatus, when: notZoned},
	{name: "RECEIVE COPY OPERATING PARAMETERS", usage: "84 03 00 00000000000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyParameters, when: notZoned},
	{name: "RECEIVE COPY FAILURE DETAILS(LID1)", usage: "84 04 ff 00000000000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyFailure, when: notZoned},
	{name: "RECEIVE COPY STATUS(LID4)", usage: "84 05 ffffffff 00000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyStatusLong, when: notZoned},
	{name: "RECEIVE COPY DATA(LID4)", usage: "84 06 ffffffff 00000000 ffffffff 00 00", class: writes, moves: allocates(10, 4), run: (*Disk).copyData, when: notZoned},
}

// heldCopies is how many operations there can be, those included whose results
// are kept. The oldest results go first.
const heldCopies = 64

// COPY OPERATION STATUS (SPC-5 table 249).
const (
	copyDone         = 0x01
	copyFailed       = 0x02
	copyPartial      = 0x03 // of a ROD token
	copyInForeground = 0x11
	copyInBackground = 0x12
	copyTerminated   = 0x60
)

// copyOperation is a copy that goes on or is over. It is known by its nexus and
// its list identifier, which is treated as one of four bytes always.
type copyOperation struct {
	who        identity
	list       uint32
	named      bool // the list identifier counts, and the result is kept
	action     byte // the service action of the command that began it
	background bool
	unit       uint64 // what TRANSFER COUNT counts, in bytes: 0 is bytes or a multiple of 1,024

	task   <-chan struct{} // closed when the command that began it is aborted; nil in the background
	cancel chan struct{}   // closed when the operation is
	closed <-chan struct{} // closed with the disk
	done   chan struct{}   // closed when it is over

	bytes              atomic.Uint64
	segments, commands atomic.Uint32

	// Under Disk.mu.
	aborted bool   // cancel is closed
	status  byte   // 0 while it goes on
	sense   Sense  // why it failed
	token   []byte // the ROD token that it made, until that is fetched
}

// begin makes an operation known, or says why it can't begin.
func (d *Disk) begin(op *copyOperation, c *Command) Sense {
	op.cancel, op.done, op.closed = make(chan struct{}), make(chan struct{}), d.closing
	if !op.background {
		op.task = c.Cancel
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
	}
	if unpowered(d.cuts.Load()) {
		return powerLost()
	}
	if op.named {
		switch old := d.copyNamed(op.who, op.list); {
		case old == nil:
		case old.status == 0:
			return Sense{Key: IllegalRequest, Code: ASCOperationInProgress}
		default:
			d.dropCopy(old)
		}
	}
	if len(d.copies) == heldCopies {
		i := len(d.copies) - 1
		for i >= 0 && d.copies[i].status == 0 {
			i--
		}
		if i < 0 {
			return Sense{Key: IllegalRequest, Code: ASCInsufficientResources}
		}
		d.copies = slices.Delete(d.copies, i, i+1)
	}
	d.copies = slices.Insert(d.copies, 0, op)
	if op.background {
		d.background.Add(1)
	}
	return Sense{}
}

// copyNamed finds an operation. Disk.mu is held.
func (d *Disk) copyNamed(who identity, list uint32) *copyOperation {
	for _, op := range d.copies {
		if op.named && op.who == who && op.list == list {
			return op
		}
	}
	return nil
}

// dropCopy forgets an operation. Disk.mu is held.
func (d *Disk) dropCopy(op *copyOperation) {
	d.copies = slices.DeleteFunc(d.copies, func(x *copyOperation) bool { return x == op })
}

// runCopy does the work of an operation that has begun, or has it done in the
// background, and returns what is to be the outcome of the command.
func (d *Disk) runCopy(op *copyOperation, work func() Sense) Sense {
	if op.background {
		go func() {
			defer d.background.Done()
			d.endCopy(op, work())
		}()
		return Sense{}
	}
	s := work()
	d.endCopy(op, s)
	return s
}

// endCopy keeps the outcome of an operation.
func (d *Disk) endCopy(op *copyOperation, s Sense) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch op.sense = s; {
	case s == (Sense{}):
		op.status = copyDone
	case op.aborted, s.Key == AbortedCommand:
		op.status = copyTerminated
	case s.Code == ASCCopyTargetUnderrun:
		op.status = copyPartial
	default:
		op.status = copyFailed
	}
	if !op.named {
		d.dropCopy(op)
	}
	close(op.done)
}

// stopped returns why an operation can't go on.
func (op *copyOperation) stopped() Sense {
	select {
	case <-op.cancel:
		return copyAborted(ASCCommandsClearedByDeviceServer)
	case <-op.task:
		return Sense{Key: AbortedCommand}
	case <-op.closed:
		return Sense{Key: HardwareError, Code: ASCInternalTargetFailure}
	default:
		return Sense{}
	}
}

// abort tells an operation to stop. Disk.mu is held.
func (op *copyOperation) abort() {
	if !op.aborted && op.status == 0 {
		op.aborted = true
		close(op.cancel)
	}
}

// abortCopies ends all operations as a reset does (SPC-5 table 109) and forgets
// their results. It returns those in the background, which have to end before
// the reset does; the others are tasks, for which the target waits. Disk.mu is
// held.
func (d *Disk) abortCopies() (wait []*copyOperation) {
	for _, op := range d.copies {
		op.abort()
		if op.named = false; op.status == 0 && op.background {
			wait = append(wait, op)
		}
	}
	d.copies = slices.DeleteFunc(d.copies, func(op *copyOperation) bool { return op.status != 0 })
	return wait
}

// abortCopiesOf ends the operations that a nexus has in the background.
func (d *Disk) abortCopiesOf(who identity) {
	var wait []*copyOperation
	d.mu.Lock()
	for _, op := range d.copies {
		if op.who == who && op.background && op.status == 0 {
			op.abort()
			wait = append(wait, op)
		}
	}
	d.mu.Unlock()
	for _, op := range wait {
		<-op.done
	}
}

// abortCopy is SPC-5 6.3.
func (d *Disk) abortCopy(n *nexus, c *Command) Sense {
	d.mu.Lock()
	op := d.copyNamed(n.who, be32(c.CDB[2:]))
	if op == nil || op.status != 0 {
		d.mu.Unlock()
		return InvalidField(2, 7)
	}
	op.abort()
	d.mu.Unlock()
	select {
	case <-op.done:
	case <-c.Cancel:
	}
	return Sense{}
}

// operation finds the one that a CDB names.
func (d *Disk) operation(n *nexus, c *Command) *copyOperation {
	list := uint32(c.CDB[2])
	if c.CDB[1] > 4 {
		list = be32(c.CDB[2:])
	}
	return d.copyNamed(n.who, list)
}

// transferCount returns TRANSFER COUNT UNITS and TRANSFER COUNT, at most as the
// latter has room for.
func (op *copyOperation) transferCount(most uint64) (units byte, count uint64) {
	count = op.bytes.Load()
	if op.unit != 0 {
		return 0xf1, count / op.unit
	}
	for ; count > most; units++ {
		count >>= 10
	}
	return units, count
}

// copyStatus is SPC-5 6.25.
func (d *Disk) copyStatus(n *nexus, c *Command) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := d.operation(n, c)
	if op == nil {
		return InvalidField(2, 7)
	}
	b := make([]byte, 12)
	put32(b, uint32(len(b)-4))
	switch op.status {
	case 0: // in progress
	case copyDone:
		b[4] = 1
	default:
		b[4] = 2
	}
	put16(b[5:], uint16(op.segments.Load()))
	units, count := op.transferCount(1<<32 - 1)
	b[7] = units
	put32(b[8:], uint32(count))
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}

// copyFailure is SPC-5 6.23: why a copy failed, nothing if it didn't.
func (d *Disk) copyFailure(n *nexus, c *Command) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := d.operation(n, c)
	if op == nil || op.sense.Key == NoSense {
		return InvalidField(2, 7)
	}
	b := make([]byte, 60, 80)
	b = op.sense.AppendFixed(b)
	put32(b, uint32(len(b)-4))
	b[56] = byte(CheckCondition)
	put16(b[58:], uint16(len(b)-60))
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}

// copyHeader is the shared third-party copy status header (SPC-5 table 248), with
// room for its first field. Disk.mu is held.
func (op *copyOperation) copyHeader() []byte {
	b := make([]byte, 32, 32+20+4+2+rodTokenSize)
	b[4], b[5] = op.action, op.status
	put16(b[6:], uint16(op.commands.Load()))
	put32(b[8:], 1<<32-2) // nothing will change
	switch op.status {
	case 0:
		b[5] = copyInForeground
		if op.background {
			b[5] = copyInBackground
		}
		put32(b[8:], 100) // milliseconds
	case copyTerminated:
		b[12] = byte(TaskAborted)
	case copyFailed, copyPartial:
		b[12] = byte(CheckCondition)
		b = op.sense.AppendFixed(b)
		b[14] = byte(len(b) - 32)
		b = append(b, make([]byte, -len(b)&3)...)
		b[13] = byte(len(b) - 32)
	}
	units, count := op.transferCount(1<<64 - 1)
	b[15] = units
	put64(b[16:], count)
	if op.unit == 0 {
		put16(b[24:], uint16(op.segments.Load()))
	}
	return b
}

// copyStatusLong is SPC-5 6.24.
func (d *Disk) copyStatusLong(n *nexus, c *Command) Sense {
	return d.copyReply(n, c, func(_ *copyOperation, header []byte) []byte { return header })
}

// copyData is SPC-5 6.20. No data is ever held.
func (d *Disk) copyData(n *nexus, c *Command) Sense {
	return d.copyReply(n, c, func(_ *copyOperation, header []byte) []byte { return append(header, 0, 0, 0, 0) })
}

// copyReply answers with the status header of an operation and what body puts
// behind it.
func (d *Disk) copyReply(n *nexus, c *Command, body func(op *copyOperation, header []byte) []byte) Sense {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := d.operation(n, c)
	if op == nil {
		return InvalidField(2, 7)
	}
	b := body(op, op.copyHeader())
	put32(b, uint32(len(b)-4))
	c.Reply(b, uint64(be32(c.CDB[10:])))
	return Sense{}
}
