package target

import (
	"sync"
	"sync/atomic"

	"lunlab/lun"
)

// taskSet lets the tasks of a logical unit execute in the order that their
// attributes ask for (SAM-5 8), and keeps its ACA conditions (SAM-5 5.9).
//
// While all tasks are SIMPLE and nothing else asks for an order, it is off and
// knows of none of them: entering and leaving costs a look at on. It goes on with
// the first task that wants order, which makes a list of those that are there.
type taskSet struct {
	lu     *LogicalUnit
	target *Target

	on atomic.Bool // changes under mu

	// mu is taken before a Nexus.mu.
	mu               sync.Mutex
	oldest, youngest *Task // linked by Task.older and Task.younger
	ordering         int   // tasks that aren't SIMPLE
	faults           int   // lanes with an ACA condition
	all              scope
	lanes            map[*Nexus]*lane
	pass             uint64
}

// scope is what tasks are in order within: all of the unit's, or those of a
// nexus where each has its own task set.
type scope struct {
	first int // tasks before which no other begins: HEAD OF QUEUE, ACA

	// What a pass over the list has seen so far.
	pass          uint64
	some, barrier bool // a task; an ORDERED one
}

// lane is a nexus's part of the task set, while it has tasks or a fault there.
type lane struct {
	scope
	tasks   int
	acas    int  // those with the ACA attribute
	faulted bool // it is the faulted I_T nexus of an ACA condition
}

// wanted tells whether a SIMPLE task has to be put in order with others.
func (s *taskSet) wanted() bool { return s.on.Load() || s.lu.control.Restricted() }

// enter is [Nexus.Enter] where order matters.
func (s *taskSet) enter(t *Task) Admission {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start()
	defer s.stop()
	n := t.nexus
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.mayEnter(t); a != Admitted {
		return a
	}
	if !s.accepts(t) {
		return Refused
	}
	if a := n.enterLocked(t); a != Admitted {
		return a
	}
	s.append(t)
	return Admitted
}

// start turns the set on. mu is held.
func (s *taskSet) start() {
	if s.on.Load() {
		return
	}
	// First this, so that whoever takes a nexus's lock after it was looked
	// through comes here with its task.
	s.on.Store(true)
	s.lanes = map[*Nexus]*lane{}
	for _, n := range s.target.list() {
		n.mu.Lock()
		for _, t := range n.tasks {
			for ; t != nil; t = t.next {
				if t.lu == s.lu {
					s.append(t)
				}
			}
		}
		n.mu.Unlock()
	}
}

// stop turns the set off if nothing asks for order any more. Then no task is
// parked. mu is held.
func (s *taskSet) stop() {
	if !s.on.Load() || s.ordering > 0 || s.faults > 0 || s.lu.control.Restricted() {
		return
	}
	for t := s.oldest; t != nil; {
		next := t.younger
		t.nexus.mu.Lock()
		t.listed, t.older, t.younger, t.lane = false, nil, nil, nil
		t.nexus.mu.Unlock()
		t = next
	}
	s.oldest, s.youngest, s.lanes = nil, nil, nil
	s.on.Store(false)
}

func (s *taskSet) laneOf(n *Nexus) *lane {
	l := s.lanes[n]
	if l == nil {
		l = new(lane)
		s.lanes[n] = l
	}
	return l
}

// dropLane forgets the lane of a nexus if there is nothing in it.
func (s *taskSet) dropLane(n *Nexus, l *lane) {
	if l.tasks == 0 && !l.faulted {
		delete(s.lanes, n)
	}
}

// append lists a task as the youngest. Both locks are held.
func (s *taskSet) append(t *Task) {
	t.listed, t.lane = true, s.laneOf(t.nexus)
	t.older, t.younger = s.youngest, nil
	if s.youngest == nil {
		s.oldest = t
	} else {
		s.youngest.younger = t
	}
	s.youngest = t
	s.count(t, 1)
}

// remove takes a task that is in no nexus's table any more off the list. mu is
// held.
func (s *taskSet) remove(t *Task) {
	if !t.listed {
		return
	}
	if t.older == nil {
		s.oldest = t.younger
	} else {
		t.older.younger = t.younger
	}
	if t.younger == nil {
		s.youngest = t.older
	} else {
		t.younger.older = t.older
	}
	s.count(t, -1)
	s.dropLane(t.nexus, t.lane)
	t.parked, t.older, t.younger, t.lane = false, nil, nil, nil
	// Its owner may be calling Execute, in vain.
	t.nexus.mu.Lock()
	t.listed = false
	t.nexus.mu.Unlock()
}

func (s *taskSet) count(t *Task, by int) {
	t.lane.tasks += by
	if t.Attr != lun.Simple {
		s.ordering += by
	}
	if t.Attr == lun.ACA {
		t.lane.acas += by
	}
	if t.Attr == lun.HeadOfQueue || t.Attr == lun.ACA {
		s.all.first += by
		t.lane.first += by
	}
}

// walk calls do for the tasks from the oldest on, with whether each may be in the
// enabled state (SAM-5 8.6), until it returns false. mu is held.
func (s *taskSet) walk(do func(t *Task, may bool) bool) {
	r := s.lu.control.Rules()
	s.pass++
	for t := s.oldest; t != nil; {
		next := t.younger // do may take t off
		l, in := t.lane, &s.all
		if r.PerNexus {
			in = &l.scope
		}
		l.renew(s.pass)
		in.renew(s.pass)
		if !do(t, s.may(t, in, l, r)) {
			return
		}
		in.some, l.some = true, true
		if t.Attr == lun.Ordered {
			in.barrier = true
			if !r.PerNexus && s.faults == 0 && s.all.first == 0 {
				return // all that are younger wait for it
			}
		}
		t = next
	}
}

func (c *scope) renew(pass uint64) {
	if c.pass != pass {
		c.pass, c.some, c.barrier = pass, false, false
	}
}

func (s *taskSet) may(t *Task, in *scope, l *lane, r lun.TaskRules) bool {
	if s.faults > 0 && (l.faulted || !r.PerNexus) {
		return l.faulted == (t.Attr == lun.ACA) && (l.faulted || preemptsAndAborts(t.CDB))
	}
	switch t.Attr {
	case lun.Simple:
		return !in.barrier && in.first == 0 && !(r.Restricted && l.some)
	case lun.Ordered:
		return !in.some && in.first == 0
	}
	return true
}

// begins tells whether a task may execute now. mu is held.
func (s *taskSet) begins(t *Task) (may bool) {
	if s.faults == 0 && t.Attr != lun.Simple && t.Attr != lun.Ordered {
		return true
	}
	s.walk(func(o *Task, m bool) bool {
		may = m && o == t
		return o != t
	})
	return may
}

// ready returns the parked tasks that may execute now, as such. The one who asks
// tells their owners when the lock is free, which is held now.
func (s *taskSet) ready() (list []*Task) {
	s.walk(func(t *Task, may bool) bool {
		if t.parked && may {
			t.nexus.mu.Lock()
			if t.state == stateParked {
				t.state = stateReady
				list = append(list, t)
			}
			t.nexus.mu.Unlock()
			t.parked = false
		}
		return true
	})
	s.stop()
	return list
}

// left says that a task has left its nexus's table, answered or not.
func (s *taskSet) left(t *Task, answered bool) {
	s.mu.Lock()
	if answered && s.lu.controller != nil {
		s.endedLocked(t)
	}
	s.remove(t)
	list := s.ready()
	s.mu.Unlock()
	tellReady(list)
}

func tellReady(list []*Task) {
	for _, t := range list {
		t.owner.TaskReady(t)
	}
}
