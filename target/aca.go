package target

import "lunlab/lun"

// ACA conditions (SAM-5 5.9): a command with NACA that ends with CHECK CONDITION
// stops its task set until the initiator clears the condition, and only commands
// with the ACA attribute go on.

// opPersistentReserveOut and its service action that aborts pass by other
// nexuses' ACA conditions, and end them.
const (
	opPersistentReserveOut = 0x5f
	preemptAndAbort        = 0x05
)

func preemptsAndAborts(cdb []byte) bool {
	return len(cdb) > 1 && cdb[0] == opPersistentReserveOut && cdb[1]&0x1f == preemptAndAbort
}

// naca is the NACA bit of the CONTROL byte (SAM-5 5.2), which is the last of a
// CDB, or the second of a variable length one.
func naca(cdb []byte) bool {
	if len(cdb) == 0 {
		return false
	}
	at := 0
	switch cdb[0] >> 5 {
	case 0:
		at = 5
	case 1, 2:
		at = 9
	case 3:
		at = 1
	case 4:
		at = 15
	case 5:
		at = 11
	default:
		return false // vendor specific, of unknown length
	}
	return at < len(cdb) && cdb[at]&0x04 != 0
}

// accepts tells whether the task set takes a command in (SAM-5 5.9.2.2, 5.9.2.3),
// or else how it ends. Both locks are held.
func (s *taskSet) accepts(t *Task) bool {
	perNexus := s.lu.control.Rules().PerNexus
	l := s.lanes[t.nexus]
	switch {
	case l != nil && l.faulted:
		if t.Attr == lun.ACA && l.acas == 0 {
			return true
		}
		t.Status = lun.ACAActive
	case s.faults > 0 && !perNexus:
		if t.Attr != lun.ACA && preemptsAndAborts(t.CDB) {
			return true
		}
		t.Status = lun.Busy
		if naca(t.CDB) {
			t.Status = lun.ACAActive
		}
	case t.Attr == lun.ACA:
		// There is no ACA condition that it could be for (SAM-5 8.6.5).
		t.Fail(lun.Sense{Key: lun.IllegalRequest, Code: codeInvalidMessage})
	default:
		return true
	}
	return false
}

// endedLocked establishes an ACA condition for a task that has ended, or ends one.
// mu is held.
func (s *taskSet) endedLocked(t *Task) {
	if t.Status != lun.CheckCondition {
		return
	}
	wants := naca(t.CDB)
	if !s.on.Load() {
		if !wants {
			return
		}
		s.start()
	}
	l := s.laneOf(t.nexus)
	switch {
	case wants && (s.faults == 0 || s.lu.control.Rules().PerNexus):
		s.fault(l, true)
	case !wants && t.Attr == lun.ACA:
		s.fault(l, false)
	}
	s.dropLane(t.nexus, l)
}

func (s *taskSet) fault(l *lane, on bool) {
	if l.faulted == on {
		return
	}
	l.faulted, s.shaken = on, true
	if on {
		s.faults++
	} else {
		s.faults--
	}
}

// clearFaults ends the ACA condition of a nexus, or all of them for nil.
func (s *taskSet) clearFaults(n *Nexus) {
	if !s.on.Load() {
		return
	}
	s.mu.Lock()
	for m, l := range s.lanes {
		if n == nil || m == n {
			s.fault(l, false)
			s.dropLane(m, l)
		}
	}
	list := s.ready(nil, nil)
	s.mu.Unlock()
	tellReady(list)
}

// faultedBy tells whether the nexus is the faulted one of an ACA condition.
func (s *taskSet) faultedBy(n *Nexus) bool {
	if !s.on.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[n]
	return l != nil && l.faulted
}
