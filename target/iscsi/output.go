package iscsi

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/target/iscsi/pdu"
)

// flushAt is how many bytes may gather before they are written although more
// input is there.
const flushAt = 256 << 10

// maxQueued is how many bytes may wait for a peer that doesn't read before those
// who produce more have to wait.
const maxQueued = 8 << 20

// output gathers a connection's PDUs and writes them. Any goroutine may commit;
// whoever flushes first writes for all.
type output struct {
	nc    net.Conn
	stamp func(bhs []byte) // fills in the session's part of a header

	mu      sync.Mutex
	room    sync.Cond
	queue   []segment
	spare   []segment
	vec     net.Buffers
	bufs    [][]byte // vec's memory
	queued  int
	writing bool
	err     error
	statSN  uint32
	digests digests

	// kept are the answers that aren't acknowledged, in StatSN's order, if keep.
	// recoverable says that they are kept beyond the end of the connection.
	keep        bool
	recoverable bool
	kept        []sent
	forgot      bool // some of it, for want of room
	keptBytes   int

	// holding says that a fence stands; heldBack is what came meanwhile, and its
	// charge.
	holding    bool
	heldBack   []segment
	heldCharge int

	// writeSince is when the write under way began, in Unix nanoseconds, 0 if
	// none is.
	writeSince atomic.Int64
	bytes      atomic.Uint64
}

// segment is a run of whole PDUs in a buffer.
type segment struct {
	off, end int
	buf      *buffer
}

// charge is how much of maxQueued a segment takes up. One that no account has is short,
// and takes more memory than it has bytes.
func (s segment) charge() int {
	if s.buf.of == nil {
		return max(s.end-s.off, 4096)
	}
	return s.end - s.off
}

func (o *output) init(nc net.Conn, stamp func([]byte)) {
	o.nc, o.stamp = nc, stamp
	o.room.L = &o.mu
}

// begin starts full feature phase, with what was negotiated for it.
func (o *output) begin(d digests, errorRecoveryLevel uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.digests = d
	o.keep, o.recoverable = errorRecoveryLevel > 0, errorRecoveryLevel > 1
}

// commit numbers the PDUs in buf.b[off:end] and queues them. The queue takes a
// hold of its own.
func (o *output) commit(buf *buffer, off, end int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.holding && holdsBack(buf.b[off:]) {
		o.holdBackLocked(segment{off, end, buf})
		return
	}
	o.commitLocked(buf, off, end)
}

func (o *output) commitLocked(buf *buffer, off, end int) {
	for p := off; p < end; p += o.digests.wireLen(pdu.DataSegmentLength(buf.b[p:])) {
		o.number(buf.b[p : p+pdu.BHSLen])
		if o.digests.header {
			putDigest(buf.b[p+pdu.BHSLen:], checksum(buf.b[p:p+pdu.BHSLen]))
		}
	}
	if o.keep && (o.err == nil || o.recoverable) {
		o.keepLocked(buf, off, end)
	}
	if o.err != nil {
		return
	}
	o.queued += segment{off, end, buf}.charge()
	if n := len(o.queue); n > 0 && o.queue[n-1].buf == buf && o.queue[n-1].end == off {
		o.queue[n-1].end = end
		return
	}
	buf.hold()
	o.queue = append(o.queue, segment{off, end, buf})
}

// number fills in StatSN, which only PDUs with a status use up (RFC 7143 4.2.2.2).
func (o *output) number(bhs []byte) {
	o.stamp(bhs)
	uses := true
	switch pdu.Opcode(bhs[0] & 0x3f) {
	case pdu.OpDataIn:
		if uses = bhs[1]&0x01 != 0; !uses {
			return
		}
	case pdu.OpR2T:
		uses = false
	case pdu.OpNOPIn:
		uses = binary.BigEndian.Uint32(bhs[16:]) != pdu.NoTag
	}
	binary.BigEndian.PutUint32(bhs[24:], o.statSN)
	if uses {
		o.statSN++
	}
}

// flush writes what is queued. If another goroutine is writing, that one does
// it; then flush returns at once, unless too much has gathered and it may wait.
func (o *output) flush(mayWait bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing {
		for mayWait && o.writing && o.queued > maxQueued && o.err == nil {
			o.room.Wait()
		}
		return o.err
	}
	o.writing = true
	for len(o.queue) > 0 && o.err == nil {
		q := o.queue
		charge := 0
		for _, s := range q {
			charge += s.charge()
		}
		o.queue, o.spare = o.spare[:0], nil
		o.mu.Unlock()
		err := o.write(q)
		o.mu.Lock()
		o.queued -= charge
		o.spare = q[:0]
		if err != nil {
			o.err = err
		}
		o.room.Broadcast()
	}
	if o.err != nil {
		o.discardLocked()
	}
	o.writing = false
	o.room.Broadcast()
	return o.err
}

// drain returns when all that was queued before has been written, by whomever.
func (o *output) drain() error {
	if err := o.flush(true); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && o.err == nil {
		o.room.Wait()
	}
	return o.err
}

func (o *output) write(q []segment) (err error) {
	o.bufs = o.bufs[:0]
	total := 0
	for _, s := range q {
		o.bufs = append(o.bufs, s.buf.b[s.off:s.end])
		total += s.end - s.off
	}
	o.writeSince.Store(time.Now().UnixNano())
	if len(o.bufs) == 1 {
		_, err = o.nc.Write(o.bufs[0])
	} else {
		o.vec = o.bufs
		_, err = o.vec.WriteTo(o.nc)
	}
	o.writeSince.Store(0)
	o.bytes.Add(uint64(total))
	clear(o.bufs)
	for _, s := range q {
		s.buf.drop()
	}
	return err
}

// waiting is how many bytes are queued.
func (o *output) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.queued
}

// fail ends the output: what is queued is dropped, and nothing more goes out.
func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	if !o.writing {
		o.discardLocked()
	}
	o.room.Broadcast()
}

func (o *output) discardLocked() {
	for _, s := range o.queue {
		o.queued -= s.charge()
		s.buf.drop()
	}
	o.queue = nil
	if !o.recoverable {
		o.forgetLocked(len(o.kept))
	}
}

// release gives up what is kept beyond the connection's end.
func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recoverable = false
	if o.err != nil {
		o.forgetLocked(len(o.kept))
	}
}
