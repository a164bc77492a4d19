package iscsi

import (
	"maps"
	"slices"
	"time"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi/pdu"
)

// numbered takes in a request that takes its turn by CmdSN, other than a SCSI
// command.
func (c *conn) numbered(h pdu.Header, b, data []byte) error {
	a := arrival{conn: c, sn: u32(b[24:]), immediate: h.Immediate}
	copy(a.bhs[:], b)
	var err error
	switch h.Opcode {
	case pdu.OpNOPOut:
		var p pdu.NOPOut
		err = p.Decode(b)
		if err == nil && p.InitiatorTaskTag == pdu.NoTag {
			// The answer to a ping, or a sign of life. It has no turn.
			c.pinged.Store(0)
			return nil
		}
	case pdu.OpTaskMgmtRequest:
		var p pdu.TaskMgmtRequest
		err = p.Decode(b)
		if err == nil && c.sess.nexus == nil {
			a.reason = pdu.ReasonProtocolError
		}
	case pdu.OpTextRequest:
		var p pdu.TextRequest
		err = p.Decode(b)
	case pdu.OpLogoutRequest:
		var p pdu.LogoutRequest
		err = p.Decode(b)
	}
	if err != nil {
		a.reason = pdu.ReasonInvalidField
	}
	if len(data) > 0 && a.reason == 0 {
		a.data = data
	}
	c.sess.arrive(c, &a)
	return nil
}

// handle does what a request asks for whose turn it is. It was decoded before.
func (on *conn) handle(a *arrival) {
	c := a.conn
	switch pdu.Opcode(a.bhs[0] & 0x3f) {
	case pdu.OpNOPOut:
		var p pdu.NOPOut
		_ = p.Decode(a.bhs[:])
		c.sess.end(a.immediate)
		c.nopOut(&p, a)
	case pdu.OpTaskMgmtRequest:
		var p pdu.TaskMgmtRequest
		_ = p.Decode(a.bhs[:])
		c.taskManagement(&p)
	case pdu.OpTextRequest:
		var p pdu.TextRequest
		_ = p.Decode(a.bhs[:])
		c.sess.end(a.immediate)
		c.text(&p, a)
	case pdu.OpLogoutRequest:
		var p pdu.LogoutRequest
		_ = p.Decode(a.bhs[:])
		c.sess.end(a.immediate)
		c.logout(&p)
	}
	if c != on {
		c.out.flush(false)
	}
}

// nopOut answers a NOP-Out with its data (RFC 7143 11.18, 11.19).
func (c *conn) nopOut(p *pdu.NOPOut, a *arrival) {
	data := a.data[:min(len(a.data), c.dataInStep())]
	r := pdu.NOPIn{
		DataSegmentLength: len(data),
		LUN:               p.LUN,
		InitiatorTaskTag:  p.InitiatorTaskTag,
		TargetTransferTag: pdu.NoTag,
	}
	c.answerWith(a, r.Encode, data)
}

// answerWith sends an answer whose data may be long, or says that there is no memory for
// it now.
func (c *conn) answerWith(a *arrival, encode func(bhs []byte), data []byte) {
	buf, n := c.encodeCounted(encode, data)
	switch {
	case buf != nil:
		c.out.commit(buf, 0, n)
		buf.drop()
	case len(data) > 1<<minBufferBits:
		c.reject(pdu.ReasonLongOperation, a.bhs[:])
	default:
		c.send(encode, data)
	}
}

// taskManagement performs a function and answers when it is complete: at once,
// or when the commands that it ends have ended.
//
// Data that R2Ts have asked for isn't waited for, although RFC 7143 4.2.3.3 a wants
// that where FastAbort wasn't negotiated: open-iscsi as it is installed
// (node.session.iscsi.FastAbort = Yes) sends none after a function, and both sides
// would wait for each other. What does come is ignored, so that an initiator that
// goes by the letter isn't harmed.
func (c *conn) taskManagement(p *pdu.TaskMgmtRequest) {
	if p.Function == pdu.TaskReassign && c.sess.params.ErrorRecoveryLevel > 1 {
		c.sess.end(p.Immediate)
		c.reassign(p)
		return
	}
	lu := c.sess.nexus.Lookup(target.Address(p.LUN))
	var told []affected
	if endsManyTasks(p.Function) {
		told = c.affectedBy(p.Function, lu)
	}
	r := pdu.TaskMgmtResponse{InitiatorTaskTag: p.InitiatorTaskTag}
	aborting := c.perform(p, lu, &r)
	complete := r.Response == pdu.FunctionComplete
	if complete {
		for _, a := range told {
			a.tell()
		}
	}
	done := func(fenced bool) {
		aborting.Wait()
		buf, n := c.encode(r.Encode, nil)
		if fenced {
			c.commitFenced(p.Immediate, buf, 0, n)
		} else {
			c.sess.end(p.Immediate)
			c.out.commit(buf, 0, n)
		}
		buf.drop()
		if complete && p.Function == pdu.TargetColdReset {
			c.coldReset()
		}
	}
	fenced := complete && (endsManyTasks(p.Function) || p.Function == pdu.ClearACA) && c.fences()
	if !aborting.Pending() && !fenced {
		done(false)
		return
	}
	c.srv.wg.Go(func() {
		done(fenced)
		c.out.flush(false)
	})
}

// endsManyTasks tells whether a function is about more than one task.
func endsManyTasks(f pdu.Function) bool {
	switch f {
	case pdu.AbortTaskSet, pdu.ClearTaskSet, pdu.LogicalUnitReset, pdu.TargetWarmReset, pdu.TargetColdReset, pdu.ITNexusReset:
		return true
	}
	return false
}

// perform begins a task management function, and fills in what it comes to
// (RFC 7143 11.5, 11.6; RFC 7144 6).
func (c *conn) perform(p *pdu.TaskMgmtRequest, lu *target.LogicalUnit, r *pdu.TaskMgmtResponse) (a target.Aborting) {
	n := c.sess.nexus
	switch p.Function {
	case pdu.AbortTask, pdu.AbortTaskSet, pdu.ClearACA, pdu.ClearTaskSet, pdu.LogicalUnitReset, pdu.QueryTask, pdu.QueryTaskSet, pdu.QueryAsyncEvent:
		if !lu.Present() {
			r.Response = pdu.LUNDoesNotExist
			return a
		}
	}
	r.Response = pdu.FunctionComplete
	switch p.Function {
	case pdu.AbortTask:
		a, found := n.AbortTask(lu, uint64(p.ReferencedTaskTag))
		if !found && !c.sess.cancel(c, p) {
			r.Response = pdu.TaskDoesNotExist
		}
		return a
	case pdu.AbortTaskSet:
		return n.AbortTaskSet(lu)
	case pdu.ClearACA:
		return n.ClearACA(lu)
	case pdu.ClearTaskSet:
		return n.ClearTaskSet(lu)
	case pdu.LogicalUnitReset:
		return n.LogicalUnitReset(lu)
	case pdu.TargetWarmReset, pdu.TargetColdReset:
		return n.TargetReset()
	case pdu.TaskReassign:
		r.Response = pdu.ReassignNotSupported
		return a
	}
	if c.sess.params.ISCSIProtocolLevel < 2 {
		r.Response = pdu.FunctionNotSupported
		return a
	}
	switch p.Function {
	case pdu.QueryTask:
		r.Response = succeededIf(n.QueryTask(lu, uint64(p.ReferencedTaskTag)))
	case pdu.QueryTaskSet:
		r.Response = succeededIf(n.QueryTaskSet(lu))
	case pdu.QueryAsyncEvent:
		count, s := n.QueryAsyncEvent(lu)
		r.Response = succeededIf(count > 0)
		r.Additional = asyncEvent(count, s)
	case pdu.ITNexusReset:
		return n.NexusReset()
	default:
		r.Response = pdu.FunctionNotSupported
	}
	return a
}

// asyncEvent is the additional response information of QUERY ASYNCHRONOUS EVENT
// (SAM-5 7.9): whether there is one event or more, and the first.
func asyncEvent(count int, s lun.Sense) [3]byte {
	if count == 0 {
		return [3]byte{}
	}
	return [3]byte{byte(min(count, 2))<<4 | byte(s.Key), byte(s.Code >> 8), byte(s.Code)}
}

func succeededIf(b bool) uint8 {
	if b {
		return pdu.FunctionSucceeded
	}
	return pdu.FunctionComplete
}

// cancel sees to it that a command which has not come, and should have come
// before this function, never will (RFC 7143 11.6.1).
func (s *session) cancel(on *conn, p *pdu.TaskMgmtRequest) bool {
	s.mu.Lock()
	exp := s.exp.Load()
	if s.closed || int32(p.RefCmdSN-exp) < 0 || int32(p.RefCmdSN-s.max.Load()) > 0 || int32(p.CmdSN-p.RefCmdSN) <= 0 {
		s.mu.Unlock()
		return false
	}
	old, ok := s.held[p.RefCmdSN]
	if ok && (old.cmd == nil || old.cmd.req.InitiatorTaskTag != p.ReferencedTaskTag) {
		s.mu.Unlock()
		return false
	}
	// Its place is taken by something that does nothing, in its turn.
	s.held[p.RefCmdSN] = arrival{sn: p.RefCmdSN, void: true}
	s.mu.Unlock()
	if ok {
		old.abandon()
	}
	s.advance(on)
	return true
}

// coldReset ends the connections of all sessions with this target
// (RFC 7143 11.5.1).
func (c *conn) coldReset() {
	c.out.flush(false)
	for _, o := range c.srv.list() {
		if o.phase.Load() == phaseFull && o.sess.tgt != nil && c.sess.tgt != nil && o.sess.tgt.same(c.sess.tgt) {
			o.hangUp()
		}
	}
}

// logout ends the session or a connection, and answers when their tasks have
// ended (RFC 7143 11.14, 11.15).
func (c *conn) logout(p *pdu.LogoutRequest) {
	x := c.sess
	r := pdu.LogoutResponse{
		InitiatorTaskTag: p.InitiatorTaskTag,
		Time2Wait:        uint16(x.params.DefaultTime2Wait),
		Time2Retain:      uint16(x.params.DefaultTime2Retain),
	}
	var end, lost, given []*conn
	x.mu.Lock()
	switch p.ReasonCode {
	case pdu.CloseSession:
		end = slices.Collect(maps.Values(x.conns))
		given, x.lost = x.lost, nil
	case pdu.CloseConnection:
		if o := x.conns[p.CID]; o != nil {
			end = append(end, o)
			delete(x.conns, p.CID)
		} else if o := x.takeLost(p.CID); o != nil {
			given = append(given, o)
		} else {
			r.Response = pdu.LogoutCIDNotFound
		}
	case pdu.RemoveForRecovery:
		o := x.conns[p.CID]
		switch {
		case x.params.ErrorRecoveryLevel < 2:
			r.Response = pdu.LogoutNoRecovery
		case o == c || o == nil && !x.hasLost(p.CID):
			r.Response = pdu.LogoutCIDNotFound
		case o != nil:
			delete(x.conns, p.CID)
			_, given = x.loseLocked(o)
			lost = append(lost, o)
		}
	}
	x.mu.Unlock()
	// Tasks may take their time to end, and this connection's reader may have
	// others to serve.
	c.srv.wg.Go(func() {
		for _, o := range end {
			if o != c {
				o.hangUp()
				<-o.deaf
			}
		}
		for _, o := range lost {
			o.nc.Close()
			<-o.deaf
			x.dropHeld(o)
		}
		for _, o := range slices.Concat(end, given) {
			x.dropHeld(o)
			x.abandon(o)
		}
		if p.ReasonCode == pdu.CloseSession && x.nexus != nil {
			x.nexus.Close() // what it has reserved is free once the answer is there
		}
		c.send(r.Encode, nil)
		if slices.Contains(end, c) {
			c.hangUp()
		}
		c.out.flush(false)
	})
}

// hangUp ends the connection when what is queued has been written.
func (c *conn) hangUp() {
	c.closing.Store(true)
	// Its reader may be waiting for input.
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// requestLogout asks the initiator to log out (RFC 7143 11.9.1, event 1).
func (c *conn) requestLogout() {
	if c.phase.Load() != phaseFull {
		c.nc.Close()
		return
	}
	p := pdu.AsyncMessage{AsyncEvent: pdu.AsyncLogoutRequest, Parameter3: 3}
	c.send(p.Encode, nil)
	c.flushApart()
}
