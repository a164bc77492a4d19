package iscsi

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi/pdu"
)

// What TaskReporting adds (RFC 7143 4.2.2.3.3, 4.2.3.4, 13.23). With ResponseFence,
// and FastAbort, an answer that tells of the end of other tasks is kept apart from
// the others of its session: what was sent before it by other connections is
// acknowledged first, and it is acknowledged before others go out. With FastAbort
// the connections whose tasks were ended are told, and owe no more data.

// fence is a session's. There is one at a time.
type fence struct {
	mu    sync.Mutex    // held for as long as it stands
	up    atomic.Bool   // acknowledgments count
	acked chan struct{} // told of an acknowledgment
}

// commitFenced is an answer's way past the other connections. It takes the place of
// session.end and output.commit, and returns when the answer is acknowledged. What waits
// for its fence is still in flight, so that there is no more of it than may be.
func (c *conn) commitFenced(immediate bool, buf *buffer, off, end int) {
	x := c.sess
	x.fence.mu.Lock()
	defer x.fence.mu.Unlock()
	x.end(immediate)
	x.fence.up.Store(true)
	defer x.fence.up.Store(false)
	all := x.working()
	due := make([]uint32, len(all))
	for i, o := range all {
		due[i] = o.out.holdBack()
	}
	for i, o := range all {
		if o != c {
			o.settle(due[i])
		}
	}
	sn := c.out.commitFirst(buf, off, end)
	c.out.flush(false)
	c.settle(sn)
	for _, o := range all {
		if o != c {
			o.out.commitFirst(nil, 0, 0)
			o.out.flush(false)
		}
	}
}

// working lists the session's connections in full feature phase.
func (x *session) working() (all []*conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, o := range x.conns {
		if o.phase.Load() == phaseFull {
			all = append(all, o)
		}
	}
	return all
}

// fences tells whether the session has other connections to be kept apart from.
func (c *conn) fences() bool {
	return c.sess.params.TaskReporting != reportRFC3720 && len(c.sess.working()) > 1
}

// settle waits until the initiator has acknowledged all before StatSN sn, and
// gives a connection up on which it doesn't.
func (c *conn) settle(sn uint32) {
	if c.acknowledged(sn) {
		return
	}
	c.ping() // the answer to which says
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	patience := time.After(c.srv.opt.PingInterval)
	for !c.acknowledged(sn) {
		select {
		case <-c.sess.fence.acked:
		case <-tick.C:
		case <-patience:
			c.give("responses aren't acknowledged")
			return
		}
	}
}

// acknowledged tells whether nothing is waited for any more.
func (c *conn) acknowledged(sn uint32) bool {
	return c.closing.Load() || c.out.failed() || int32(c.heardOf.Load()-sn) >= 0
}

// noteAck takes note of an ExpStatSN while a fence stands.
func (c *conn) noteAck(expStatSN uint32) {
	c.heardOf.Store(expStatSN)
	select {
	case c.sess.fence.acked <- struct{}{}:
	default:
	}
}

// holdBack lets nothing with a status out until commitFirst, and returns the
// StatSN that comes next.
func (o *output) holdBack() uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holding = true
	return o.statSN
}

// commitFirst commits buf, if there is one, then what was held back. It returns the
// StatSN after buf's.
func (o *output) commitFirst(buf *buffer, off, end int) (sn uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holding = false
	if buf != nil {
		o.commitLocked(buf, off, end)
	}
	sn = o.statSN
	for _, s := range o.heldBack {
		o.commitLocked(s.buf, s.off, s.end)
		s.buf.drop()
	}
	o.heldBack, o.heldCharge = nil, 0
	return sn
}

// holdBackLocked keeps an answer for commitFirst. A connection that has more answered
// than its session has memory for, while it lets others wait, has failed.
func (o *output) holdBackLocked(s segment) {
	if s.buf.of == nil {
		o.heldCharge += s.charge()
	}
	if o.heldCharge > maxQueued && o.err == nil {
		o.err = errHeldBack
	}
	if o.err != nil && !o.recoverable {
		return
	}
	if n := len(o.heldBack); n > 0 && o.heldBack[n-1].buf == s.buf && o.heldBack[n-1].end == s.off {
		o.heldBack[n-1].end = s.end
		return
	}
	s.buf.hold()
	o.heldBack = append(o.heldBack, s)
}

var errHeldBack = errors.New("iscsi: too much waits for responses to be acknowledged")

// holdsBack tells whether the PDUs that begin with bhs have to wait: answers to
// commands and functions.
func holdsBack(bhs []byte) bool {
	switch pdu.Opcode(bhs[0] & 0x3f) {
	case pdu.OpSCSIResponse, pdu.OpTaskMgmtResponse, pdu.OpDataIn:
		return true
	}
	return false
}

func (o *output) failed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err != nil
}

// tellsOfReset tells whether an answer to k lets the initiator know that tasks of
// its session were ended by another's doing (RFC 7143 4.2.3.4).
func (k *command) tellsOfReset() bool {
	if k.Status != lun.CheckCondition || len(k.Sense) < 14 {
		return false
	}
	key, asc := k.Sense[2]&0xf, k.Sense[12]
	if k.Sense[0]&0x7f >= 0x72 {
		key, asc = k.Sense[1]&0xf, k.Sense[2]
	}
	return lun.SenseKey(key) == lun.UnitAttention && (asc == 0x29 || asc == 0x2f)
}

// affected is where FastAbort is to be told of: a connection, and a unit that it
// has tasks for.
type affected struct {
	conn *conn
	lun  pdu.LUN
}

// affectedBy lists what a function of c's will end that is to be told, of all
// sessions with its target.
func (c *conn) affectedBy(f pdu.Function, lu *target.LogicalUnit) (list []affected) {
	all := f == pdu.TargetWarmReset || f == pdu.TargetColdReset
	for _, x := range c.srv.listSessions() {
		own := x == c.sess
		if x.tgt != c.sess.tgt || x.params.TaskReporting != reportFastAbort || !own && (f == pdu.AbortTaskSet || f == pdu.ITNexusReset) {
			continue
		}
		x.nexus.Each(func(t *target.Task) {
			k, ok := t.Owner().(*command)
			if !ok || !all && f != pdu.ITNexusReset && t.LogicalUnit() != lu {
				return
			}
			a := affected{k.conn(), k.req.LUN}
			if a.conn != nil && a.conn != c && !slices.Contains(list, a) {
				list = append(list, a)
			}
		})
	}
	return list
}

// tell says that the tasks are ended (RFC 7143 11.9.1, event 5). Data that still
// comes for them is ignored, whether that is acknowledged or not.
func (a affected) tell() {
	p := pdu.AsyncMessage{LUN: a.lun, AsyncEvent: pdu.AsyncTasksTerminated}
	a.conn.send(p.Encode, nil)
	a.conn.flushApart()
}
