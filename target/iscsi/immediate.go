package iscsi

import (
	"slices"

	"lunlab/target/iscsi/pdu"
)

// maxImmediate is how many immediate commands and functions a session may have
// in flight (RFC 7143 4.2.2.1 leaves the number to the target).
const maxImmediate = 64

// arriveImmediate lets an immediate request come. The lock is held, and released.
//
// A function that ends many tasks concerns those that were sent before it, so
// what has a lower CmdSN and hasn't come yet is waited for (RFC 7143 4.2.3.3). A
// reset of the whole target doesn't wait: what hasn't come never will.
func (s *session) arriveImmediate(on *conn, a *arrival) {
	if s.immediate >= maxImmediate && a.reason == 0 {
		s.mu.Unlock()
		on.reject(pdu.ReasonTooManyImmediate, a.header())
		a.drop()
		return
	}
	s.immediate++
	s.enter(a)
	var gone []arrival
	switch {
	case !s.precededLocked(a):
	case a.endsTasksOfUnit():
		waits := *a // a copy, so that those that don't wait needn't be on the heap
		s.behind = append(s.behind, &waits)
		s.mu.Unlock()
		return
	case a.resetsTarget():
		gone = s.plugLocked(a.sn)
	}
	s.mu.Unlock()
	for _, o := range gone {
		o.abandon()
	}
	if gone != nil {
		s.advance(on)
	}
	on.begin(a)
}

// precededLocked tells whether something with a lower CmdSN than a's is yet to
// come. A number outside the window says nothing.
func (s *session) precededLocked(a *arrival) bool {
	return int32(a.sn-s.exp.Load()) > 0 && int32(a.sn-s.max.Load()) <= 1
}

// plugLocked puts voids where commands with a CmdSN below sn have not had their
// turn, and returns those that waited for it.
func (s *session) plugLocked(sn uint32) []arrival {
	gone := []arrival{}
	for n := s.exp.Load(); n != sn; n++ {
		a, ok := s.held[n]
		switch {
		case ok && a.cmd == nil:
			continue // it isn't a task
		case ok:
			gone = append(gone, a)
		}
		s.held[n] = arrival{sn: n, void: true}
	}
	return gone
}

// functionLocked is a function that waits no longer, if there is one.
func (s *session) functionLocked() *arrival {
	i := slices.IndexFunc(s.behind, func(a *arrival) bool { return !a.begun && int32(a.sn-s.exp.Load()) <= 0 })
	if i < 0 {
		return nil
	}
	return s.behind[i]
}

// pausedLocked tells whether a function's turn has come and it isn't done: what
// comes after it has to wait, or would be ended by it.
func (s *session) pausedLocked() bool {
	return slices.ContainsFunc(s.behind, func(a *arrival) bool { return int32(a.sn-s.exp.Load()) <= 0 })
}

// function is what a asks for, 0 if it is no task management.
func (a *arrival) function() pdu.Function {
	if a.cmd != nil || a.reason != 0 || pdu.Opcode(a.bhs[0]&0x3f) != pdu.OpTaskMgmtRequest {
		return 0
	}
	return pdu.Function(a.bhs[1] & 0x7f)
}

func (a *arrival) endsTasksOfUnit() bool {
	switch a.function() {
	case pdu.AbortTaskSet, pdu.ClearTaskSet, pdu.LogicalUnitReset:
		return true
	}
	return false
}

func (a *arrival) resetsTarget() bool {
	switch a.function() {
	case pdu.TargetWarmReset, pdu.TargetColdReset:
		return true
	}
	return false
}
