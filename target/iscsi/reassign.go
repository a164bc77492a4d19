package iscsi

import (
	"slices"

	"lunlab/target/iscsi/pdu"
)

// What ErrorRecoveryLevel 2 adds (RFC 7143 7.2.2): the tasks of a connection that
// is gone wait, and the initiator has them reassigned to another one by a task
// management function each.

// hasLost tells whether a connection with that CID is lost. The session's lock is
// held.
func (x *session) hasLost(cid uint16) bool {
	return slices.ContainsFunc(x.lost, func(c *conn) bool { return c.cid == cid })
}

// takeLost takes a lost connection off the list. The session's lock is held.
func (x *session) takeLost(cid uint16) *conn {
	i := slices.IndexFunc(x.lost, func(c *conn) bool { return c.cid == cid })
	if i < 0 {
		return nil
	}
	c := x.lost[i]
	x.lost = slices.Delete(x.lost, i, i+1)
	return c
}

// reassign answers TASK REASSIGN: the referenced task goes on by this connection
// (RFC 7143 7.2.2, 11.5.1, 11.6.1).
func (c *conn) reassign(p *pdu.TaskMgmtRequest) {
	x := c.sess
	itt := p.ReferencedTaskTag
	x.mu.Lock()
	lost := slices.Clone(x.lost)
	x.mu.Unlock()
	respond := func(response uint8) {
		r := pdu.TaskMgmtResponse{Response: response, InitiatorTaskTag: p.InitiatorTaskTag}
		c.send(r.Encode, nil)
	}
	for _, old := range lost {
		if a, ok := old.out.takeAnswer(itt); ok {
			respond(pdu.FunctionComplete)
			c.sendAnswer(a, p.ExpDataSN)
			return
		}
		if k := old.takeWaiting(itt); k != nil {
			respond(pdu.FunctionComplete)
			c.adopt(k)
			return
		}
	}
	t := x.nexus.Find(uint64(itt))
	if t == nil {
		respond(pdu.TaskDoesNotExist)
		return
	}
	k := t.Owner().(*command)
	old := k.conn()
	if !slices.Contains(lost, old) {
		respond(pdu.TaskStillAllegiant)
		return
	}
	// It executes. Its answer comes here when it is there.
	x.mu.Lock()
	if x.adopters == nil {
		x.adopters = map[uint32]*conn{}
	}
	x.adopters[itt] = c
	x.mu.Unlock()
	respond(pdu.FunctionComplete)
	old.handOver(itt)
}

// handOver sends an answer of a lost connection by the one that has taken the
// task over, when both are there.
func (c *conn) handOver(itt uint32) {
	x := c.sess
	x.mu.Lock()
	to := x.adopters[itt]
	x.mu.Unlock()
	if to == nil {
		return
	}
	a, ok := c.out.takeAnswer(itt)
	if !ok {
		return
	}
	x.mu.Lock()
	delete(x.adopters, itt)
	x.mu.Unlock()
	to.sendAnswer(a, 0)
	to.out.flush(false)
}

// takeWaiting takes a command off a lost connection that waits for data.
func (c *conn) takeWaiting(itt uint32) *command {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.waiting[itt]
	if k == nil || !k.xfer.delivered {
		return nil
	}
	delete(c.waiting, itt)
	return k
}

// adopt makes a command that waits for data this connection's, and asks for what
// is missing.
func (c *conn) adopt(k *command) {
	x := &k.xfer
	c.mu.Lock()
	defer c.mu.Unlock()
	// Whoever filled its buffer has stopped, or fills it in vain.
	k.shared = true
	k.home.Store(c)
	c.waiting[k.req.InitiatorTaskTag] = k
	c.restartLocked(x)
	if c.sess.nexus.Find(k.Tag) != &k.Task {
		// Aborted on the way.
		delete(c.waiting, k.req.InitiatorTaskTag)
		return
	}
	c.askLocked(k)
}

// restartLocked forgets which data was asked for, as the tags were another
// connection's.
func (c *conn) restartLocked(x *transfer) {
	if p := &c.sess.params; !p.DataPDUInOrder || !p.DataSequenceInOrder {
		// There may be holes in what has come: all of it again.
		x.got = x.base
	}
	x.unsolicited, x.stale, x.r2ts, x.asked = false, nil, nil, x.got
}

// answered is what a command came to, apart from how it was sent.
type answered struct {
	data     []byte
	response pdu.SCSIResponse
	sense    []byte

	// The data that isn't acknowledged begins at offset base with DataSN first.
	// offsets are those of its PDUs.
	base, first uint32
	offsets     []uint32
}

// takeAnswer takes the answer of a command out of what is kept.
func (o *output) takeAnswer(itt uint32) (a answered, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	i := slices.IndexFunc(o.kept, func(s sent) bool { return s.itt == itt })
	if i < 0 {
		return a, false
	}
	s := o.kept[i]
	for at := s.off; at < s.end; at += o.digests.wireLen(pdu.DataSegmentLength(s.buf.b[at:])) {
		n := pdu.DataSegmentLength(s.buf.b[at:])
		data := s.buf.b[at+o.digests.headerLen():][:n]
		var d pdu.DataIn
		switch {
		case d.Decode(s.buf.b[at:]) == nil:
			if len(a.offsets) == 0 {
				a.base, a.first = d.BufferOffset, d.DataSN
			}
			a.offsets = append(a.offsets, d.BufferOffset)
			a.data = append(a.data, data...)
			if d.HasStatus {
				a.response = pdu.SCSIResponse{Residual: d.Residual, Status: d.Status, ResidualCount: d.ResidualCount, InitiatorTaskTag: itt}
				ok = true
			}
		case a.response.Decode(s.buf.b[at:]) == nil:
			a.sense = slices.Clone(data)
			ok = true
		}
	}
	if !ok {
		return a, false // another kind of answer
	}
	o.keptBytes -= s.end - s.off
	s.buf.drop()
	o.kept = slices.Delete(o.kept, i, i+1)
	return a, true
}

// sendAnswer sends an answer anew, with numbers of this connection: the data
// from the PDU that had expDataSN on, and the status by itself.
func (c *conn) sendAnswer(a answered, expDataSN uint32) {
	k := command{step: c.dataInStep()}
	k.home.Store(c)
	base := int(a.base)
	off, end, sn := base, base+len(a.data), a.first
	if i := int64(expDataSN) - int64(a.first); i >= int64(len(a.offsets)) {
		off, sn = end, a.first+uint32(len(a.offsets))
	} else if i > 0 {
		off, sn = int(a.offsets[i]), expDataSN
	}
	for ; off < end; sn++ {
		n := k.dataInLen(off, end)
		d := pdu.DataIn{
			DataSegmentLength: n, InitiatorTaskTag: a.response.InitiatorTaskTag, TargetTransferTag: pdu.NoTag,
			DataSN: sn, BufferOffset: uint32(off),
		}
		d.Final = off+n == end || (off+n)%int(c.sess.params.MaxBurstLength) == 0
		c.send(d.Encode, a.data[off-base:off-base+n])
		off += n
	}
	r := a.response
	r.ExpDataSN, r.DataSegmentLength = max(sn, a.response.ExpDataSN), len(a.sense)
	c.send(r.Encode, a.sense)
}
