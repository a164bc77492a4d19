package iscsi

import (
	"slices"
	"time"

	"lunlab/target/iscsi/pdu"
)

// What ErrorRecoveryLevel 1 adds (RFC 7143 7.2): the target keeps its answers
// until they are acknowledged, to send them again when a SNACK asks for them; and
// it asks again for data that was damaged or lost.

const (
	// maxKept bounds the answers that a connection keeps, in bytes. The oldest
	// go first; an initiator that acknowledges doesn't notice.
	maxKept = 16 << 20

	// maxRecoveries is how often data is asked for again before the command
	// fails.
	maxRecoveries = 8

	// dataPatience is how long data may be late before it is taken for lost.
	dataPatience = 2 * time.Second
)

// sent is an answer that isn't acknowledged: PDUs of which the last has a status.
type sent struct {
	segment
	statSN uint32
	itt    uint32
}

// keepLocked keeps the answer that was committed as buf.b[off:end], if it has a
// status.
func (o *output) keepLocked(buf *buffer, off, end int) {
	last := off
	for p := off; p < end; p += o.digests.wireLen(pdu.DataSegmentLength(buf.b[p:])) {
		last = p
	}
	bhs := buf.b[last:]
	switch pdu.Opcode(bhs[0] & 0x3f) {
	case pdu.OpR2T:
		return
	case pdu.OpNOPIn:
		if u32(bhs[16:]) == pdu.NoTag {
			return
		}
	}
	buf.hold()
	o.kept = append(o.kept, sent{segment{off, end, buf}, u32(bhs[24:]), u32(bhs[16:])})
	o.keptBytes += end - off
	for o.keptBytes > maxKept {
		o.forgetLocked(1)
		o.forgot = true
	}
}

// forgetLocked drops the first n answers.
func (o *output) forgetLocked(n int) {
	for _, s := range o.kept[:n] {
		o.keptBytes -= s.end - s.off
		s.buf.drop()
	}
	o.kept = append(o.kept[:0], o.kept[n:]...)
}

// acknowledge drops the answers before expStatSN.
func (o *output) acknowledge(expStatSN uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if int32(expStatSN-o.statSN) > 0 {
		return // nothing like that was sent
	}
	n := 0
	for n < len(o.kept) && int32(o.kept[n].statSN-expStatSN) < 0 {
		n++
	}
	o.forgetLocked(n)
}

// acknowledgeData drops the data of a command before DataSN BegRun, which the A bit
// of one of its PDUs has asked to acknowledge (RFC 7143 11.16.4). It returns false
// if none has.
func (o *output) acknowledgeData(memory *account, p *pdu.SNACKRequest) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.IndexFunc(o.kept, func(s sent) bool { return s.itt == p.InitiatorTaskTag })
	if i < 0 {
		// The initiator can't know what there was no room for.
		return o.forgot
	}
	s := &o.kept[i]
	from, asked := s.off, false
	for at := s.off; at < s.end; {
		var d pdu.DataIn
		if d.Decode(s.buf.b[at:]) != nil {
			break
		}
		at += o.digests.wireLen(d.DataSegmentLength)
		if int32(d.DataSN-p.BegRun) < 0 {
			from = at
		}
		if d.Acknowledge && d.TargetTransferTag == p.TargetTransferTag && d.LUN == p.LUN && d.DataSN+1 == p.BegRun {
			asked = true
		}
	}
	if !asked || p.RunLength != 0 {
		return false
	}
	o.keptBytes -= from - s.off
	s.off = from
	// What is left moves to where it takes up less.
	if n := s.end - s.off; n < len(s.buf.b)/4 {
		if buf := memory.get(n); buf != nil {
			copy(buf.b, s.buf.b[s.off:s.end])
			s.buf.drop()
			s.segment = segment{0, n, buf}
		}
	}
	return true
}

// resend queues copies of the PDUs that match of the answers that are kept, and
// returns their number. The copies keep their StatSN.
func (o *output) resend(memory *account, match func(s *sent, bhs []byte, last bool) bool) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.kept {
		s := &o.kept[i]
		for p := s.off; p < s.end; {
			l := o.digests.wireLen(pdu.DataSegmentLength(s.buf.b[p:]))
			if match(s, s.buf.b[p:p+pdu.BHSLen], p+l == s.end) {
				if o.copyLocked(memory, s.buf.b[p:p+l]) {
					n++
				}
			}
			p += l
		}
	}
	return n
}

func (o *output) copyLocked(memory *account, b []byte) bool {
	if o.err != nil {
		return false
	}
	buf := memory.get(len(b))
	if buf == nil {
		return false
	}
	copy(buf.b, b)
	o.stamp(buf.b[:pdu.BHSLen])
	if o.digests.header {
		putDigest(buf.b[pdu.BHSLen:], checksum(buf.b[:pdu.BHSLen]))
	}
	s := segment{0, len(b), buf}
	o.queue = append(o.queue, s)
	o.queued += s.charge()
	return true
}

// inRun tells whether n is one of length numbers from beg on, 0 meaning all.
func inRun(n, beg, length uint32) bool {
	d := n - beg
	return int32(d) >= 0 && (length == 0 || d < length)
}

// snack answers a SNACK Request (RFC 7143 11.16).
func (c *conn) snack(b []byte) {
	var p pdu.SNACKRequest
	if err := p.Decode(b); err != nil {
		c.reject(pdu.ReasonInvalidField, b)
		return
	}
	if c.sess.params.ErrorRecoveryLevel < 1 {
		c.reject(pdu.ReasonSNACK, b)
		return
	}
	n := 0
	switch p.Type {
	case pdu.SNACKStatus:
		n = c.out.resend(&c.sess.memory, func(s *sent, _ []byte, last bool) bool {
			return last && inRun(s.statSN, p.BegRun, p.RunLength)
		})
	case pdu.SNACKData:
		if n = c.repeatR2Ts(&p); n == 0 {
			n = c.out.resend(&c.sess.memory, func(s *sent, bhs []byte, _ bool) bool {
				return s.itt == p.InitiatorTaskTag && pdu.Opcode(bhs[0]) == pdu.OpDataIn && inRun(u32(bhs[36:]), p.BegRun, p.RunLength)
			})
		}
	case pdu.SNACKDataACK:
		if !c.out.acknowledgeData(&c.sess.memory, &p) {
			c.reject(pdu.ReasonInvalidDataACK, b)
		}
		return
	case pdu.SNACKRData:
		n = c.resegment(&p)
	}
	if n == 0 {
		c.reject(pdu.ReasonSNACK, b)
	}
}

// resegment sends a command's data again in PDUs as the initiator takes them now,
// and a status that carries the SNACK tag (RFC 7143 11.16.3).
func (c *conn) resegment(p *pdu.SNACKRequest) int {
	o := &c.out
	o.mu.Lock()
	var data []byte
	var first pdu.DataIn // that isn't acknowledged
	var status *pdu.SCSIResponse
	for i := range o.kept {
		s := &o.kept[i]
		if s.itt != p.InitiatorTaskTag {
			continue
		}
		for at := s.off; at < s.end; at += o.digests.wireLen(pdu.DataSegmentLength(s.buf.b[at:])) {
			var d pdu.DataIn
			if d.Decode(s.buf.b[at:]) != nil {
				continue
			}
			if len(data) == 0 {
				first = d
			}
			from := at + o.digests.headerLen()
			data = append(data, s.buf.b[from:from+d.DataSegmentLength]...)
			if d.HasStatus {
				status = &pdu.SCSIResponse{Residual: d.Residual, Status: d.Status, ResidualCount: d.ResidualCount}
				status.SN.StatSN = d.SN.StatSN
			}
		}
	}
	o.mu.Unlock()
	if len(data) == 0 || p.BegRun != 0 || p.RunLength != 0 {
		return 0
	}
	k := command{step: c.dataInStep()}
	k.home.Store(c)
	sn, base := first.DataSN, int(first.BufferOffset)
	for off, end := base, base+len(data); off < end; sn++ {
		n := k.dataInLen(off, end)
		d := pdu.DataIn{
			DataSegmentLength: n, InitiatorTaskTag: p.InitiatorTaskTag, TargetTransferTag: pdu.NoTag,
			DataSN: sn, BufferOffset: uint32(off),
		}
		d.Final = off+n == end || (off+n)%int(c.sess.params.MaxBurstLength) == 0
		c.send(d.Encode, data[off-base:off-base+n])
		off += n
	}
	if status == nil {
		// The status came by itself, and is asked for by itself.
		return int(sn - first.DataSN)
	}
	status.InitiatorTaskTag, status.SNACKTag, status.ExpDataSN = p.InitiatorTaskTag, p.TargetTransferTag, sn
	b := make([]byte, c.digests.wireLen(0))
	status.Encode(b)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.copyLocked(&c.sess.memory, b)
	return int(sn-first.DataSN) + 1
}

// repeatR2Ts sends outstanding R2Ts of a command again.
func (c *conn) repeatR2Ts(p *pdu.SNACKRequest) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[p.InitiatorTaskTag]
	if k == nil {
		return 0
	}
	for _, r := range k.xfer.r2ts {
		if inRun(r.sn, p.BegRun, p.RunLength) {
			c.sendR2T(k, &r)
			n++
		}
	}
	return n
}

// recoverLocked asks again for data of k that was damaged or lost: that of the
// sequence with tag ttt, or all that is asked for if it is NoTag. It returns false
// if that can't be, and the command has to fail.
func (c *conn) recoverLocked(k *command, ttt uint32) bool {
	x := &k.xfer
	if c.sess.params.ErrorRecoveryLevel < 1 || x.recoveries == maxRecoveries {
		return false
	}
	x.recoveries++
	x.heard = time.Now()
	if x.unsolicited {
		// What still comes unsolicited is ignored; what is missing is asked for
		// when the command's turn has come.
		x.unsolicited, x.stale = false, append(x.stale, pdu.NoTag)
		if !c.sess.params.DataPDUInOrder {
			x.got = x.base
		}
		x.asked, x.base = x.got, x.got
		if x.delivered {
			c.askLocked(k)
		}
		return true
	}
	asked := false
	for i := range x.r2ts {
		r := &x.r2ts[i]
		if ttt != pdu.NoTag && ttt != r.ttt {
			continue
		}
		// The sequence's rest under another tag: what comes under the old one is
		// ignored (RFC 7143 7.4.1, a recovery R2T).
		x.stale = append(x.stale, r.ttt)
		x.got -= uint32(r.parts.sum)
		r.parts = spans{}
		r.ttt, r.dataSN, r.sn = c.newTTT(), 0, x.r2tSN
		x.r2tSN++
		c.sendR2T(k, r)
		asked = true
	}
	return asked
}

// askForLate asks again for data that has been under way for too long, and ends the
// commands for which that was tried often enough.
func (c *conn) askForLate(now time.Time) {
	if c.sess.params.ErrorRecoveryLevel < 1 {
		return
	}
	asked := false
	c.mu.Lock()
	var given []*command
	for _, k := range c.waiting {
		x := &k.xfer
		if x.heard.IsZero() || now.Sub(x.heard) < dataPatience {
			continue
		}
		if c.recoverLocked(k, pdu.NoTag) {
			asked = true
		} else {
			given = append(given, k)
		}
	}
	for _, k := range given {
		k.failLocked(senseServiceCRC)
		delete(c.waiting, k.req.InitiatorTaskTag)
	}
	c.mu.Unlock()
	for _, k := range given {
		// Its reader may be amid data for it, so nothing of it is used again.
		k.shared = true
		if k.xfer.delivered && k.FailUnexecuted(k.failure) {
			c.finish(k)
			asked = true
		}
	}
	if asked {
		c.flushApart()
	}
}
