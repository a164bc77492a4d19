package iscsi

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi/pdu"
)

// command is a SCSI command from its arrival to its answer.
type command struct {
	target.Task
	req pdu.SCSICommand

	// home is the connection that the command belongs to. A task that waits for
	// data may be reassigned to another (RFC 7143 7.2.2).
	home atomic.Pointer[conn]

	unit *target.LogicalUnit

	cdb     [16]byte
	longCDB []byte

	// bidiRead is the Expected Bidirectional Read Data Transfer Length.
	bidiRead uint32

	// outWant and inWant are how many bytes of data the unit takes and gives at
	// the most, within what the initiator is ready for.
	outWant, inWant int

	// cut says that inWant is less than both had in mind. A command that has more
	// to give then fails.
	cut bool

	// shared says that the command had to wait for its turn: it may be started,
	// and ended, by a goroutine other than its reader.
	shared bool

	// step is the most data of a PDU of the answer: it may be negotiated anew
	// while the command runs.
	step int

	admission target.Admission
	noMemory  bool
	failure   lun.Sense // if its Key isn't NoSense: how it is to fail

	// The state of data-out; see dataout.go. Guarded by conn.mu.
	xfer transfer

	data    *buffer   // data-out that was gathered
	dataOut [2][]byte // memory for Task.DataOut
	iov     [][]byte  // memory for Task.DataIn
}

var commands = sync.Pool{New: func() any { return new(command) }}

func (k *command) conn() *conn { return k.home.Load() }

func (c *conn) newCommand() *command {
	k := commands.Get().(*command)
	k.home.Store(c)
	return k
}

// release gives up a command that nothing else knows any more.
func (k *command) release() {
	if k.shared {
		k.abandon()
		return
	}
	if k.data != nil {
		k.data.drop()
		k.data = nil
	}
	k.Reset()
	k.home.Store(nil)
	k.unit, k.longCDB, k.bidiRead, k.outWant, k.inWant = nil, nil, 0, 0, 0
	k.noMemory, k.cut, k.failure = false, false, lun.Sense{}
	k.xfer.reset()
	k.dataOut[0], k.dataOut[1] = nil, nil
	commands.Put(k)
}

// abandon gives up a command that its reader may still be looking at: it isn't used
// again.
func (k *command) abandon() {
	if k.data != nil {
		k.data.drop()
	}
}

// MaxTransfer is the most bytes of blocks that a unit may let a command move by
// iSCSI, one way. A unit has to announce no more (SBC-4 6.6.4).
const MaxTransfer = 32 << 20

// senseTooLong ends a command that would move more. It never moves a part.
var senseTooLong = lun.Sense{Key: lun.IllegalRequest, Code: 0x2400}

// scsiCommand takes in a SCSI Command PDU: its header segments in b, its data
// in the input buffer.
func (c *conn) scsiCommand(b, data []byte) error {
	k, a := c.prepare(b)
	if k == nil {
		c.sess.arrive(c, &a)
		return nil
	}
	if k.req.Write {
		k.expectData(len(data))
	}
	// Data that is all here and whose turn it is may stay in the input buffer.
	if len(data) > 0 {
		if k.xfer.complete() && k.Inline && (k.req.Immediate || k.req.CmdSN == c.sess.exp.Load()) {
			k.setDataOut(data[:min(len(data), k.outWant)])
		} else if k.allocate() {
			copy(k.data.b[:k.outWant], data)
		}
	}
	c.submit(k, &a)
	return nil
}

// largeCommand takes in a SCSI Command PDU whose n bytes of data are more than
// the input buffer holds: they go to the command's own.
func (c *conn) largeCommand(b []byte, hlen, n int) error {
	k, a := c.prepare(b)
	c.in.take(hlen)
	if k == nil {
		if err := c.skipData(n); err != nil {
			return err
		}
		c.sess.arrive(c, &a)
		return nil
	}
	k.expectData(n)
	var to []byte
	if k.allocate() {
		to = k.data.b[:min(n, k.outWant)]
	}
	whole, err := c.readData(to, n)
	if err != nil {
		k.release()
		return err
	}
	if !whole {
		k.req.Encode(a.bhs[:])
		c.reject(pdu.ReasonDataDigest, a.bhs[:])
		k.release()
		return nil
	}
	c.submit(k, &a)
	return nil
}

// prepare makes a command of header segments and sees how much data it is to
// move. There is none if the request is to be refused.
func (c *conn) prepare(b []byte) (*command, arrival) {
	k := c.newCommand()
	a := arrival{conn: c}
	if err := k.req.Decode(b); err != nil {
		a.reason = pdu.ReasonInvalidField
	} else if c.sess.nexus == nil {
		// In a discovery session there is only SendTargets, and logout
		// (RFC 7143 4.3).
		a.reason = pdu.ReasonProtocolError
	} else if err := k.readAHS(b[pdu.BHSLen:]); err != nil {
		a.reason = pdu.ReasonInvalidField
	}
	a.sn, a.immediate = k.req.CmdSN, k.req.Immediate
	if a.reason != 0 {
		k.release()
		copy(a.bhs[:], b)
		return nil, a
	}
	k.Attr = attributes[k.req.Attr]
	if c.sess.params.ISCSIProtocolLevel >= 2 {
		k.Priority = k.req.Priority
	}
	k.unit = c.sess.nexus.Lookup(target.Address(k.req.LUN))
	k.Inline, k.Path = !lun.Waits(k.unit.Unit(), k.CDB), k
	out, in := c.sess.nexus.DataLength(k.unit, k.CDB)
	read := k.req.ExpectedDataTransferLength
	if k.req.Write {
		out = min(out, uint64(k.req.ExpectedDataTransferLength))
		if out > c.srv.maxTransfer {
			out, k.failure = 0, senseTooLong
		}
		k.outWant = int(out)
		read = k.bidiRead
		k.setDataOut(nil)
	}
	if k.req.Read {
		// An allocation length may be more than there is to send.
		in = min(in, uint64(read))
		k.inWant, k.cut = int(min(in, c.srv.maxTransfer)), in > c.srv.maxTransfer
	}
	a.cmd = k
	return k, a
}

// attributes are SAM's for those of RFC 7143 11.3.1; an untagged task is a simple
// one.
var attributes = [...]lun.TaskAttribute{
	pdu.AttrUntagged: lun.Simple, pdu.AttrSimple: lun.Simple, pdu.AttrOrdered: lun.Ordered,
	pdu.AttrHeadOfQueue: lun.HeadOfQueue, pdu.AttrACA: lun.ACA,
}

// submit lets a command come in its turn.
func (c *conn) submit(k *command, a *arrival) {
	if k.req.Write && !k.xfer.complete() && !c.register(k) {
		a.reason, a.cmd = pdu.ReasonTaskInProgress, nil
		k.req.Encode(a.bhs[:])
		k.release()
	}
	c.sess.arrive(c, a)
}

// excess stands for data that the initiator was ready to send and the unit has no
// use for. It was never asked for; but some commands have to be refused then.
var excess [64 << 10]byte

// setDataOut makes b the command's data-out.
func (k *command) setDataOut(b []byte) {
	k.dataOut[0] = b
	k.DataOut = k.dataOut[:1]
	if more := uint64(k.req.ExpectedDataTransferLength) - uint64(k.outWant); more > 0 {
		k.dataOut[1] = excess[:min(more, uint64(len(excess)))]
		k.DataOut = k.dataOut[:]
	}
}

// readAHS takes the CDB's end and the bidirectional length from the additional
// header segments.
func (k *command) readAHS(b []byte) error {
	k.cdb = k.req.CDB
	k.CDB = k.cdb[:]
	for len(b) > 0 {
		a, rest, err := pdu.NextAHS(b)
		if err != nil {
			return err
		}
		b = rest
		switch a.Type {
		case pdu.AHSExtendedCDB:
			if k.longCDB != nil {
				return pdu.ErrField
			}
			k.longCDB = append(append(make([]byte, 0, 16+len(a.Data)), k.cdb[:]...), a.Data...)
			k.CDB = k.longCDB
			if len(k.CDB) > maxCDB {
				return pdu.ErrField
			}
		case pdu.AHSBidiReadExpectedLength:
			if len(a.Data) != 4 {
				return pdu.ErrField
			}
			k.bidiRead = binary.BigEndian.Uint32(a.Data)
		default:
			return pdu.ErrField
		}
	}
	return nil
}

// maxCDB is the longest CDB that there is (SPC-5 4.2.3).
const maxCDB = 260

// begin starts what has come in its turn. on is the connection whose goroutine
// this is.
func (on *conn) begin(a *arrival) {
	c := a.conn
	k := a.cmd
	switch {
	case a.void:
		on.sess.end(false)
		return
	case a.reason != 0:
		c.sess.end(a.immediate)
		c.reject(a.reason, a.bhs[:])
	case k == nil:
		on.handle(a)
		return
	case k.admission == target.DuplicateTag:
		// An overlapped command (SAM-5 5.10, RFC 7143 11.17.1).
		c.unregister(k)
		bhs := a.header()
		k.release()
		c.sess.end(a.immediate)
		c.reject(pdu.ReasonTaskInProgress, bhs)
	case k.admission == target.NexusClosed:
		c.unregister(k)
		k.abandon()
		c.sess.end(a.immediate)
	case k.admission == target.Refused:
		c.unregister(k)
		c.finish(k)
	default:
		if c.deliver(k) {
			on.run(k)
			return
		}
	}
	if c != on {
		c.out.flush(false)
	}
}

// run executes a command whose data is all here.
func (on *conn) run(k *command) {
	c := k.conn()
	switch {
	case k.noMemory || k.failure.Key != lun.NoSense:
		// The task leaves its set as one that never ran.
		s := k.failure
		if !k.FailUnexecuted(s) {
			return
		}
		if k.noMemory {
			k.Status, k.Sense = lun.Busy, nil
		}
		c.finish(k)
		if c != on {
			c.out.flush(false)
		}
	case !k.Inline:
		on.srv.wg.Add(1)
		go func() {
			defer on.srv.wg.Done()
			c.runApart(k)
		}()
	case c == on:
		c.runHere(k)
	default:
		c.runApart(k)
	}
}

// runHere executes a command in the reader of its own connection.
func (c *conn) runHere(k *command) {
	need := c.answerRoom(k)
	if c.arena == nil || c.arenaOff+need > len(c.arena.b) {
		if c.arena != nil {
			c.arena.drop()
		}
		c.arenaOff = 0
		if c.arena = c.sess.memory.get(max(need, arenaSize)); c.arena == nil {
			c.arena = c.sess.memory.get(need)
		}
		if c.arena == nil {
			k.noMemory = true
			c.run(k)
			return
		}
	}
	buf, off := c.arena, c.arenaOff
	k.layout(buf.b[off:])
	if !k.Execute() {
		return
	}
	if k.Leave() {
		end := off + k.encodeAnswer(buf.b[off:])
		c.arenaOff = end
		c.commitAnswer(k, buf, off, end)
	} else {
		c.sess.end(k.req.Immediate)
	}
	k.release()
}

// runApart executes a command on another goroutine than its connection's.
func (c *conn) runApart(k *command) {
	var buf *buffer
	if !k.noMemory {
		buf = c.sess.memory.get(c.answerRoom(k))
	}
	if buf == nil {
		if k.FailUnexecuted(lun.Sense{}) {
			k.Status, k.Sense = lun.Busy, nil
			c.finish(k)
			c.out.flush(false)
		}
		return
	}
	k.layout(buf.b)
	if !k.Execute() {
		buf.drop()
		return
	}
	if k.AnswerAborted {
		c.out.commit(buf, 0, k.encodeAnswer(buf.b))
	}
	answer := k.Leave()
	if answer {
		c.commitAnswer(k, buf, 0, k.encodeAnswer(buf.b))
	} else {
		c.sess.end(k.req.Immediate)
	}
	buf.drop()
	itt := k.req.InitiatorTaskTag
	k.release()
	if c.out.flush(false) != nil && answer {
		c.handOver(itt)
	}
}

// commitAnswer counts k out and commits its answer.
func (c *conn) commitAnswer(k *command, buf *buffer, off, end int) {
	immediate := k.req.Immediate
	if k.Status == lun.Good || !k.tellsOfReset() || !c.fences() {
		c.sess.end(immediate)
		c.out.commit(buf, off, end)
		return
	}
	buf.hold()
	c.srv.wg.Go(func() {
		c.commitFenced(immediate, buf, off, end)
		buf.drop()
	})
}

// finish answers a command that has left its task set unexecuted.
func (c *conn) finish(k *command) {
	k.InLen, k.OutLen = 0, 0
	c.answerUnexecuted(k)
	c.sess.end(k.req.Immediate)
	k.release()
}

// answerUnexecuted changes nothing of k: its reader may be about to execute it, and
// find that it is aborted.
func (c *conn) answerUnexecuted(k *command) {
	buf := uncounted(c.digests.wireLen(senseRoom))
	flags, residual, bidiResidual := k.residuals()
	end := k.encodeResponse(buf.b, k.xfer.r2tSN, flags, residual, bidiResidual)
	c.out.commit(buf, 0, end)
	buf.drop()
}

// TaskAborted is called when task management has ended the command before it
// ran.
func (k *command) TaskAborted(*target.Task) {
	c := k.conn()
	c.unregister(k)
	if k.Status == lun.TaskAborted {
		c.mu.Lock() // for what the answer says of the transfer
		c.answerUnexecuted(k)
		c.mu.Unlock()
	}
	k.abandon()
	c.sess.end(k.req.Immediate)
	if k.Status == lun.TaskAborted {
		c.flushApart()
	}
}

// TaskDeferred makes it a command that another goroutine can execute: data-out
// that lies in the input buffer is moved out of it.
func (k *command) TaskDeferred(*target.Task) {
	k.Inline = false
	if k.data != nil || k.outWant == 0 || len(k.DataOut) == 0 {
		return
	}
	if from := k.DataOut[0]; k.allocate() {
		copy(k.data.b, from)
		k.setDataOut(k.data.b[:k.outWant])
	}
}

// TaskReady executes a command that had to wait for others.
func (k *command) TaskReady(*target.Task) {
	c := k.conn()
	c.srv.wg.Add(1)
	go func() {
		defer c.srv.wg.Done()
		c.runApart(k)
	}()
}
