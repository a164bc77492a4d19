package iscsi

import (
	"hash/crc32"
	"slices"
	"time"

	"lunlab/lun"
	"lunlab/target/iscsi/pdu"
)

// transfer is how far the data-out of a command has come. It is guarded by the
// lock of the command's connection.
type transfer struct {
	want uint32 // bytes that the unit takes
	got  uint32 // bytes that are here or were skipped, from the start
	// first is where unsolicited data ends at the latest.
	first       uint32
	unsolicited bool // its last PDU is yet to come
	dataSN      uint32
	parts       spans // of unsolicited data, if PDUs come in any order

	delivered bool // the command's turn has come
	failed    bool // nothing more is waited for

	asked uint32 // where the last R2T ends, or what came with the command
	base  uint32 // where unsolicited data ended
	r2tSN uint32
	r2ts  []r2t // outstanding, in order

	// For recovery: the tags whose data is ignored, how often data was asked
	// for again, and when some came last.
	stale      []uint32
	recoveries int
	heard      time.Time
}

// r2t is a Ready To Transfer that isn't answered in full.
type r2t struct {
	ttt, sn  uint32
	off, end uint32 // what is still to come
	dataSN   uint32
	parts    spans // what has come of it, if PDUs come in any order
}

func (x *transfer) reset() { *x = transfer{r2ts: x.r2ts[:0], stale: x.stale[:0]} }

func (x *transfer) complete() bool {
	return x.failed || !x.unsolicited && x.got >= x.want
}

// Sense for what can go wrong with data-out (RFC 7143 11.4.7.2).
var (
	senseUnexpectedData = lun.Sense{Key: lun.AbortedCommand, Code: 0x0c0c}
	senseIncorrectData  = lun.Sense{Key: lun.AbortedCommand, Code: 0x0c0d}
	senseServiceCRC     = lun.Sense{Key: lun.AbortedCommand, Code: 0x4705}
)

// expectData sets up the transfer of a write whose PDU came with length bytes of
// data.
func (k *command) expectData(length int) {
	x, p := &k.xfer, &k.conn().sess.params
	n := uint32(length)
	x.want = uint32(k.outWant)
	x.first = min(p.FirstBurstLength, k.req.ExpectedDataTransferLength)
	x.unsolicited = !k.req.Final
	x.got, x.asked, x.base = n, n, n
	if x.unsolicited && p.ErrorRecoveryLevel > 0 {
		x.heard = time.Now()
	}
	switch {
	case n > 0 && !p.ImmediateData, x.unsolicited && p.InitialR2T:
		k.failLocked(senseUnexpectedData)
	case n > x.first:
		k.failLocked(senseIncorrectData)
	case !x.complete() && !k.allocate():
		// No R2T; but unsolicited data is let come.
		x.want = 0
	}
}

// allocate gets the buffer for the data-out, if there isn't one.
func (k *command) allocate() bool {
	if k.data == nil && k.outWant > 0 && !k.noMemory {
		k.data = k.conn().sess.memory.get(k.outWant)
		k.noMemory = k.data == nil
	}
	return k.data != nil
}

func (k *command) failLocked(s lun.Sense) {
	k.failure = s
	k.xfer.failed = true
	k.conn().late.add(k.req.InitiatorTaskTag)
}

// register makes a command known to Data-Out PDUs; not if there is one with its
// tag.
func (c *conn) register(k *command) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[k.req.InitiatorTaskTag] != nil {
		return false
	}
	c.waiting[k.req.InitiatorTaskTag] = k
	return true
}

// unregister takes it out again; data that still comes for it is ignored.
func (c *conn) unregister(k *command) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[k.req.InitiatorTaskTag] == k {
		delete(c.waiting, k.req.InitiatorTaskTag)
		c.late.add(k.req.InitiatorTaskTag)
	}
}

// deliver says that the command's turn has come, and asks for its data. True
// means that the data is here already, and the command may run.
func (c *conn) deliver(k *command) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.xfer.delivered = true
	if k.xfer.complete() {
		c.readyLocked(k)
		return true
	}
	if c.waiting[k.req.InitiatorTaskTag] == k { // it wasn't aborted meanwhile
		c.askLocked(k)
	}
	return false
}

// readyLocked hands the gathered data to the task.
func (c *conn) readyLocked(k *command) {
	if c.waiting[k.req.InitiatorTaskTag] == k {
		delete(c.waiting, k.req.InitiatorTaskTag)
	}
	if k.data != nil {
		k.setDataOut(k.data.b[:k.outWant])
	}
}

// askLocked sends as many R2Ts as may be outstanding, when the unsolicited data
// is here.
func (c *conn) askLocked(k *command) {
	x, p := &k.xfer, &c.sess.params
	for !x.unsolicited && !x.failed && x.asked < x.want && uint32(len(x.r2ts)) < p.MaxOutstandingR2T {
		n := min(p.MaxBurstLength, x.want-x.asked)
		r := r2t{ttt: c.newTTT(), sn: x.r2tSN, off: x.asked, end: x.asked + n}
		x.r2ts = append(x.r2ts, r)
		x.r2tSN++
		x.asked += n
		if p.ErrorRecoveryLevel > 0 {
			x.heard = time.Now()
		}
		c.sendR2T(k, &r)
	}
}

func (c *conn) sendR2T(k *command, r *r2t) {
	p := pdu.R2T{
		LUN:                       k.req.LUN,
		InitiatorTaskTag:          k.req.InitiatorTaskTag,
		TargetTransferTag:         r.ttt,
		R2TSN:                     r.sn,
		BufferOffset:              r.off,
		DesiredDataTransferLength: r.end - r.off,
	}
	c.send(p.Encode, nil)
}

// dataOut takes in a Data-Out PDU, whose data hasn't been read.
func (c *conn) dataOut(p *pdu.DataOut, bhs *[pdu.BHSLen]byte) error {
	n := p.DataSegmentLength
	c.mu.Lock()
	k := c.waiting[p.InitiatorTaskTag]
	if k == nil {
		late := c.late.has(p.InitiatorTaskTag)
		c.mu.Unlock()
		if late {
			return c.skipData(n)
		}
		return c.refuse(pdu.ReasonInvalidField, bhs[:], n)
	}
	known, sense := k.xfer.check(p, &c.sess.params)
	if !known {
		stale := slices.Contains(k.xfer.stale, p.TargetTransferTag)
		c.mu.Unlock()
		if stale {
			return c.skipData(n)
		}
		return c.refuse(pdu.ReasonInvalidField, bhs[:], n)
	}
	if sense.Key != lun.NoSense {
		if sense == senseServiceCRC && c.recoverLocked(k, p.TargetTransferTag) {
			c.mu.Unlock()
		} else {
			c.failTransfer(k, sense)
		}
		return c.skipData(n)
	}
	var to []byte
	if k.data != nil && p.BufferOffset < k.xfer.want {
		to = k.data.b[p.BufferOffset:min(p.BufferOffset+uint32(n), k.xfer.want)]
	}
	buf := k.data
	if to != nil {
		buf.hold() // the command may end meanwhile
	}
	c.mu.Unlock()
	whole, err := c.readData(to, n)
	if to != nil {
		buf.drop()
	}
	if err != nil {
		return err
	}
	if !whole {
		c.reject(pdu.ReasonDataDigest, bhs[:])
	}
	c.mu.Lock()
	if c.waiting[p.InitiatorTaskTag] != k {
		// Aborted meanwhile.
		c.mu.Unlock()
		return nil
	}
	if !whole {
		if c.recoverLocked(k, p.TargetTransferTag) {
			c.mu.Unlock()
		} else {
			c.failTransfer(k, senseServiceCRC)
		}
		return nil
	}
	k.xfer.count(p, &c.sess.params)
	if !k.xfer.heard.IsZero() {
		k.xfer.heard = time.Now()
	}
	run := false
	if k.xfer.delivered {
		if run = k.xfer.complete(); run {
			c.readyLocked(k)
		} else {
			c.askLocked(k)
		}
	}
	c.mu.Unlock()
	if run {
		c.run(k)
	}
	return nil
}

// failTransfer ends the command of a transfer that went wrong, now or when its
// turn comes. It is called with the lock held and releases it.
func (c *conn) failTransfer(k *command, s lun.Sense) {
	k.failLocked(s)
	delete(c.waiting, k.req.InitiatorTaskTag)
	run := k.xfer.delivered
	c.mu.Unlock()
	if run {
		c.run(k)
	}
}

// check tells whether p is a PDU that the transfer waits for; and if it is, but
// not as it should be, the sense that its command ends with.
func (x *transfer) check(p *pdu.DataOut, par *Params) (known bool, s lun.Sense) {
	off, end := uint64(p.BufferOffset), uint64(p.BufferOffset)+uint64(p.DataSegmentLength)
	if p.TargetTransferTag == pdu.NoTag {
		switch {
		case !x.unsolicited && slices.Contains(x.stale, pdu.NoTag):
			return false, s
		case !x.unsolicited:
			return true, senseUnexpectedData
		case p.DataSN != x.dataSN:
			// Something before it was lost (RFC 7143 7.9).
			return true, senseServiceCRC
		case end > uint64(x.first):
			return true, senseIncorrectData
		case !par.DataPDUInOrder:
			if off < uint64(x.asked) || !x.parts.fits(off, end) || p.Final && !x.parts.fills(x.asked, off, end) {
				return true, senseIncorrectData
			}
		case off != uint64(x.got), end == uint64(x.first) && !p.Final:
			return true, senseIncorrectData
		}
		return true, s
	}
	i := slices.IndexFunc(x.r2ts, func(r r2t) bool { return r.ttt == p.TargetTransferTag })
	if i < 0 {
		return false, s
	}
	r := &x.r2ts[i]
	switch {
	case i > 0 && par.DataSequenceInOrder:
		return true, senseIncorrectData
	case p.DataSN != r.dataSN:
		return true, senseServiceCRC
	case end > uint64(r.end):
		return true, senseIncorrectData
	case !par.DataPDUInOrder:
		if off < uint64(r.off) || !r.parts.fits(off, end) || p.Final && r.parts.sum+end-off != uint64(r.end-r.off) {
			return true, senseIncorrectData
		}
	case off != uint64(r.off), p.Final && end != uint64(r.end):
		return true, senseIncorrectData
	}
	return true, s
}

// count notes that the data of p is here, which check has found right.
func (x *transfer) count(p *pdu.DataOut, par *Params) {
	n := uint32(p.DataSegmentLength)
	off, end := uint64(p.BufferOffset), uint64(p.BufferOffset)+uint64(n)
	x.got += n
	if p.TargetTransferTag == pdu.NoTag {
		x.dataSN++
		if !par.DataPDUInOrder {
			x.parts.add(off, end)
		}
		if p.Final {
			x.unsolicited = false
			x.asked = x.got
			x.base = x.got
		}
		return
	}
	i := slices.IndexFunc(x.r2ts, func(r r2t) bool { return r.ttt == p.TargetTransferTag })
	r := &x.r2ts[i]
	r.dataSN++
	done := false
	if par.DataPDUInOrder {
		r.off += n
		done = r.off == r.end
	} else {
		r.parts.add(off, end)
		done = r.parts.sum == uint64(r.end-r.off)
	}
	if done {
		x.r2ts = slices.Delete(x.r2ts, i, i+1)
	}
}

// readData reads n bytes of data, with padding and digest: the first into to,
// what is beyond it is forgotten. It tells whether the digest is right.
func (c *conn) readData(to []byte, n int) (ok bool, err error) {
	if err := c.in.readFull(to); err != nil {
		return false, err
	}
	if !c.digests.data || n == 0 {
		return true, c.in.skip(n + pdu.Pad(n) - len(to))
	}
	sum := checksum(to)
	for rest := n + pdu.Pad(n) - len(to); rest > 0; {
		l := min(rest, len(c.in.buf))
		b, err := c.in.view(l)
		if err != nil {
			return false, err
		}
		sum = crc32.Update(sum, castagnoli, b)
		c.in.take(l)
		rest -= l
	}
	b, err := c.in.view(digestLen)
	if err != nil {
		return false, err
	}
	c.in.take(digestLen)
	return getDigest(b) == sum, nil
}

// lateTags remembers the last tasks that ended while data was under way to them.
type lateTags struct {
	tags []uint32
	next int
}

const lateTagCount = 256

func (l *lateTags) add(tag uint32) {
	if l.has(tag) {
		return
	}
	if len(l.tags) < lateTagCount {
		l.tags = append(l.tags, tag)
		return
	}
	l.tags[l.next] = tag
	l.next = (l.next + 1) % lateTagCount
}

func (l *lateTags) has(tag uint32) bool {
	for _, t := range l.tags {
		if t == tag {
			return true
		}
	}
	return false
}
