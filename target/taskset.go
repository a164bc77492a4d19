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

	// mu is taken before a Target.mu, and that before a Nexus.mu.
	mu       sync.Mutex
	all      scope
	lanes    map[*Nexus]*lane
	spare    *lane  // those that aren't in use: as many as ever were at once
	age      uint64 // of the youngest task
	ordering int    // tasks that aren't SIMPLE
	faults   int    // lanes with an ACA condition
	parked   int
	rules    lun.TaskRules // as last seen

	// shaken says that a parked task may go on for another reason than that one
	// has left which it waited for.
	shaken bool
}

// scope is what tasks are in order within: all of the unit's, or those of a
// nexus where each has its own task set. Its tasks are linked by their places of
// the scope's kind.
//
// It keeps: ordered is its oldest ORDERED task; none older than parked is parked.
type scope struct {
	kind             int
	oldest, youngest *Task
	ordered, parked  *Task
	first            int // tasks before which no other begins: HEAD OF QUEUE, ACA
}

// The kinds of scopes.
const (
	scopeAll = iota
	scopeLane
	scopeKinds
)

// place is where a task is in a scope.
type place struct{ older, younger *Task }

// lane is a nexus's part of the task set, while it has tasks or a fault there.
type lane struct {
	scope
	tasks   int
	acas    int  // those with the ACA attribute
	faulted bool // it is the faulted I_T nexus of an ACA condition
	next    *lane
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
	if s.lanes == nil {
		s.lanes = map[*Nexus]*lane{}
	}
	s.target.mu.Lock()
	defer s.target.mu.Unlock()
	for n := range s.target.nexuses {
		n.mu.Lock()
		for t := range n.tasks.all() {
			if t.lu == s.lu {
				s.append(t)
			}
		}
		n.mu.Unlock()
	}
}

// stop turns the set off if nothing asks for order any more. mu is held.
func (s *taskSet) stop() {
	if !s.on.Load() || s.ordering > 0 || s.faults > 0 || s.parked > 0 || s.lu.control.Restricted() {
		return
	}
	for t := s.all.oldest; t != nil; {
		next := t.places[scopeAll].younger
		s.remove(t)
		t = next
	}
	s.on.Store(false)
}

func (s *taskSet) laneOf(n *Nexus) *lane {
	l := s.lanes[n]
	if l == nil {
		if l = s.spare; l == nil {
			l = new(lane)
		} else {
			s.spare = l.next
		}
		*l = lane{scope: scope{kind: scopeLane}}
		s.lanes[n] = l
	}
	return l
}

// dropLane forgets the lane of a nexus if there is nothing in it.
func (s *taskSet) dropLane(n *Nexus, l *lane) {
	if l.tasks == 0 && !l.faulted {
		delete(s.lanes, n)
		l.next, s.spare = s.spare, l
	}
}

// append lists a task as the youngest. Both locks are held.
func (s *taskSet) append(t *Task) {
	s.age++
	t.age, t.listed, t.lane = s.age, true, s.laneOf(t.nexus)
	s.all.append(t)
	t.lane.append(t)
	s.count(t, 1)
}

// remove takes a task off the list. mu is held.
func (s *taskSet) remove(t *Task) {
	if !t.listed {
		return
	}
	s.unpark(t)
	s.count(t, -1)
	s.all.remove(t)
	t.lane.remove(t)
	s.dropLane(t.nexus, t.lane)
	t.lane = nil
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

func (c *scope) append(t *Task) {
	t.places[c.kind] = place{older: c.youngest}
	if c.youngest == nil {
		c.oldest = t
	} else {
		c.youngest.places[c.kind].younger = t
	}
	c.youngest = t
	if c.ordered == nil && t.Attr == lun.Ordered {
		c.ordered = t
	}
}

func (c *scope) remove(t *Task) {
	at := t.places[c.kind]
	if at.older == nil {
		c.oldest = at.younger
	} else {
		at.older.places[c.kind].younger = at.younger
	}
	if at.younger == nil {
		c.youngest = at.older
	} else {
		at.younger.places[c.kind].older = at.older
	}
	if c.parked == t {
		c.parked = at.younger
	}
	if c.ordered == t {
		// What is passed over here had to wait for t, and for no other ORDERED
		// task: each task is passed over once.
		for c.ordered = at.younger; c.ordered != nil && c.ordered.Attr != lun.Ordered; {
			c.ordered = c.ordered.places[c.kind].younger
		}
	}
	t.places[c.kind] = place{}
}

// park has a task wait. Both locks are held.
func (s *taskSet) park(t *Task) {
	t.parked = true
	s.parked++
	for _, c := range [...]*scope{&s.all, &t.lane.scope} {
		if c.parked == nil || t.age < c.parked.age {
			c.parked = t
		}
	}
}

func (s *taskSet) unpark(t *Task) {
	if t.parked {
		t.parked = false
		s.parked--
	}
}

// look returns the rules that hold. mu is held.
func (s *taskSet) look() lun.TaskRules {
	if r := s.lu.control.Rules(); r != s.rules {
		s.rules, s.shaken = r, true
	}
	return s.rules
}

// may tells whether a listed task may be in the enabled state (SAM-5 8.6). mu is
// held.
func (s *taskSet) may(t *Task) bool {
	r, l := s.look(), t.lane
	if s.faults > 0 && (l.faulted || !r.PerNexus) {
		return l.faulted == (t.Attr == lun.ACA) && (l.faulted || preemptsAndAborts(t.CDB))
	}
	c := &s.all
	if r.PerNexus {
		c = &l.scope
	}
	switch t.Attr {
	case lun.Simple:
		return c.first == 0 && (c.ordered == nil || t.age < c.ordered.age) && !(r.Restricted && l.oldest != t)
	case lun.Ordered:
		return c.first == 0 && c.oldest == t
	}
	return true
}

// ready returns the parked tasks that may execute now that left, which had lane l,
// has left the set, nil if none has. The one who asks tells their owners when the
// lock is free, which is held now.
//
// It looks at as few tasks as the rules allow: a set may be thousands deep, and
// each of its tasks leaves.
func (s *taskSet) ready(left *Task, l *lane) (list []*Task) {
	r := s.look()
	switch {
	case s.parked == 0:
	case s.shaken || left == nil:
		for t := s.all.parked; t != nil; t = t.places[scopeAll].younger {
			if t.parked && s.may(t) {
				list = s.enable(list, t)
			}
		}
	case r.PerNexus:
		list = s.release(list, &l.scope)
	case !r.Restricted:
		list = s.release(list, &s.all)
	case left.Attr == lun.Simple:
		list = s.release(list, &l.scope)
		if o := s.all.ordered; o != nil && o.parked && s.may(o) {
			list = s.enable(list, o)
		}
	default:
		for _, l := range s.lanes {
			list = s.release(list, &l.scope)
		}
	}
	s.shaken = false
	s.stop()
	return list
}

// release adds the parked tasks of a scope that may execute, up to the first that
// mayn't: those that are younger wait for the same.
func (s *taskSet) release(list []*Task, c *scope) []*Task {
	for ; c.parked != nil; c.parked = c.parked.places[c.kind].younger {
		if !c.parked.parked {
			continue
		}
		if !s.may(c.parked) {
			break
		}
		list = s.enable(list, c.parked)
	}
	return list
}

func (s *taskSet) enable(list []*Task, t *Task) []*Task {
	s.unpark(t)
	t.nexus.mu.Lock()
	defer t.nexus.mu.Unlock()
	if t.state == stateParked { // it isn't being aborted
		t.state = stateReady
		list = append(list, t)
	}
	return list
}

// left says that a task has left its nexus's table, answered or not.
func (s *taskSet) left(t *Task, answered bool) {
	s.mu.Lock()
	if answered && s.lu.controller != nil {
		s.endedLocked(t)
	}
	l := t.lane
	s.remove(t)
	if l == nil {
		t = nil // it wasn't listed
	}
	list := s.ready(t, l)
	s.mu.Unlock()
	tellReady(list)
}

func tellReady(list []*Task) {
	for _, t := range list {
		t.owner.TaskReady(t)
	}
}
