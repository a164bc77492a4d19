package target

import (
	"maps"
	"slices"

	"lunlab/lun"
)

// Aborting is a task management function under way: the tasks that it ends and
// what is to be told when they have ended. The zero value is one that is over.
//
// The functions that return one have already seen to it that none of the tasks
// begins to execute or is answered; those that wait for data are gone.
//
// A task that another nexus than its own aborts is answered with TASK ABORTED if
// the unit's Control mode page says so (TAS), else its nexus gets a unit attention
// (SAM-5 5.6).
type Aborting struct {
	count   int
	running []<-chan struct{}
	tell    []func()
}

// Pending tells whether [Aborting.Wait] may block.
func (a *Aborting) Pending() bool { return len(a.running) > 0 }

// Wait returns when the function is complete: all its tasks have ended and the
// units have been told.
func (a *Aborting) Wait() {
	for _, done := range a.running {
		<-done
	}
	a.running = nil
	a.notify()
}

// notify tells the units, without waiting for the tasks.
func (a *Aborting) notify() {
	for _, tell := range a.tell {
		tell()
	}
	a.tell = nil
}

func (a *Aborting) then(tell func()) { a.tell = append(a.tell, tell) }

// abort ends the tasks of the nexuses that match. by is the nexus that asked for
// it, nil if none did. match is called with a lock held.
func (t *Target) abort(by *Nexus, nexuses []*Nexus, match func(*Task) bool) (a Aborting) {
	var gone, ready []*Task
	for _, n := range nexuses {
		gone = append(gone, a.collect(by, n, match)...)
	}
	sets := map[*taskSet]struct{}{}
	for _, t := range gone {
		s := &t.lu.set
		s.mu.Lock()
		if t.listed {
			s.remove(t)
			sets[s] = struct{}{}
		}
		s.mu.Unlock()
	}
	for s := range sets {
		s.mu.Lock()
		ready = append(ready, s.ready(nil, nil)...)
		s.mu.Unlock()
	}
	for _, t := range gone {
		t.lu.counters.aborted.Add(1)
		t.endAborted()
		t.owner.TaskAborted(t)
	}
	tellReady(ready)
	return a
}

// collect aborts the tasks of n that match. It returns those that have left the
// table for it.
func (a *Aborting) collect(by, n *Nexus, match func(*Task) bool) (gone []*Task) {
	var lost []*LogicalUnit
	n.mu.Lock()
	for t := range n.tasks.all() {
		if !match(t) {
			continue
		}
		a.count++
		// One that was aborted in silence stays so: its initiator may have been told
		// that it is over.
		t.silent = t.silent || by == nil || by == n || !t.lu.control.Rules().AbortedStatus
		if by != nil && by != n && t.silent && !slices.Contains(lost, t.lu) {
			lost = append(lost, t.lu)
		}
		switch t.state {
		case stateWaiting, stateParked:
			n.unlink(t)
			gone = append(gone, t)
		case stateReady:
			t.state = stateDoomed
			a.await(t)
		case stateRunning:
			t.state = stateAborted
			if t.cancel != nil {
				close(t.cancel)
			}
			a.await(t)
		default:
			a.await(t)
		}
	}
	n.mu.Unlock()
	for _, lu := range lost {
		a.then(func() { lu.unit.Notify(&n.id, lun.CommandsLost) })
	}
	return gone
}

func (a *Aborting) await(t *Task) {
	if t.done == nil {
		t.done = make(chan struct{})
	}
	a.running = append(a.running, t.done)
}

// of matches the tasks of a logical unit.
func of(lu *LogicalUnit) func(*Task) bool { return func(t *Task) bool { return t.lu == lu } }

func all(*Task) bool { return true }

// AbortTask ends the task with that tag, if there is one for lu (SAM-5 7.2).
func (n *Nexus) AbortTask(lu *LogicalUnit, tag uint64) (a Aborting, found bool) {
	a = n.AbortWhere(func(t *Task) bool { return t.Tag == tag && t.lu == lu })
	return a, a.count > 0
}

// AbortTaskSet ends this nexus's tasks for lu (SAM-5 7.3).
func (n *Nexus) AbortTaskSet(lu *LogicalUnit) Aborting { return n.AbortWhere(of(lu)) }

// AbortWhere ends this nexus's tasks that match. match is called with a lock held,
// and must not call the nexus or the task.
func (n *Nexus) AbortWhere(match func(*Task) bool) Aborting {
	return n.target.abort(n, []*Nexus{n}, match)
}

// ClearACA ends the ACA condition that a command of this nexus has established
// in lu's task set, and the task with the ACA attribute in it (SAM-5 7.4). Where
// there is none it does nothing.
func (n *Nexus) ClearACA(lu *LogicalUnit) (a Aborting) {
	if !lu.set.faultedBy(n) {
		return a
	}
	a = n.AbortWhere(func(t *Task) bool { return t.lu == lu && t.Attr == lun.ACA })
	lu.set.clearFaults(n)
	return a
}

// ClearTaskSet ends the tasks of lu's task set, which may be that of all nexuses
// (SAM-5 7.5).
func (n *Nexus) ClearTaskSet(lu *LogicalUnit) Aborting {
	if lu.control.Rules().PerNexus {
		return n.AbortTaskSet(lu)
	}
	return n.target.abort(n, n.target.list(), of(lu))
}

// LogicalUnitReset resets lu (SAM-5 6.3.3, 7.7).
func (n *Nexus) LogicalUnitReset(lu *LogicalUnit) Aborting {
	return n.reset(of(lu), lun.LogicalUnitReset, lu)
}

// TargetReset resets all logical units, those that n doesn't see among them
// (SAM-5 6.3.2: a hard reset).
func (n *Nexus) TargetReset() Aborting {
	return n.reset(all, lun.HardReset, n.target.Units()...)
}

func (n *Nexus) reset(match func(*Task) bool, e lun.Event, units ...*LogicalUnit) Aborting {
	a := n.target.abort(n, n.target.list(), match)
	for _, lu := range units {
		lu.set.clearFaults(nil)
		a.then(func() { lu.unit.Notify(&n.id, e) })
	}
	return a
}

// NexusReset ends this nexus's tasks for all units and tells the units of a
// loss, as if the nexus had gone and come again (SAM-5 7.6).
func (n *Nexus) NexusReset() Aborting {
	a := n.AbortWhere(all)
	for _, lu := range n.target.Units() {
		lu.set.clearFaults(n)
		a.then(func() { lu.unit.Notify(&n.id, lun.NexusReset) })
	}
	return a
}

// QueryTask tells whether the task is in lu's task set (SAM-5 7.8).
func (n *Nexus) QueryTask(lu *LogicalUnit, tag uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.tasks.find(tag)
	return t != nil && t.lu == lu
}

// QueryTaskSet tells whether this nexus has tasks in lu's task set (SAM-5 7.10).
func (n *Nexus) QueryTaskSet(lu *LogicalUnit) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for t := range n.tasks.all() {
		if t.lu == lu {
			return true
		}
	}
	return false
}

// QueryAsyncEvent returns the unit attention condition that is next for this
// nexus, and how many there are (SAM-5 7.9). It leaves them pending.
func (n *Nexus) QueryAsyncEvent(lu *LogicalUnit) (count int, first lun.Sense) {
	if lu.controller == nil {
		return 0, first
	}
	return lu.controller.Attention(&n.id)
}

// Each calls f for each task of this nexus, with a lock held: f must not call the
// nexus or change the task.
func (n *Nexus) Each(f func(*Task)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for t := range n.tasks.all() {
		f(t)
	}
}

func (t *Target) list() []*Nexus {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.nexuses))
}

// AbortTasksOf ends the tasks of nexus id for the unit at number, on behalf of a
// PREEMPT AND ABORT by another (SPC-5 5.14.11.2.6), and the nexus's ACA condition.
// It returns when those that execute have ended, but for PERSISTENT RESERVE OUT,
// which may be waiting here itself.
func (t *Target) AbortTasksOf(number uint16, id *lun.Nexus) {
	lu := (*t.units.Load())[number]
	nexuses := slices.DeleteFunc(t.list(), func(n *Nexus) bool { return &n.id != id })
	if lu == nil || len(nexuses) == 0 {
		return
	}
	lu.set.clearFaults(nexuses[0])
	another := new(Nexus)
	match := func(reserves bool) func(*Task) bool {
		return func(k *Task) bool {
			return k.lu == lu && reserves == (len(k.CDB) > 0 && k.CDB[0] == opPersistentReserveOut)
		}
	}
	a := t.abort(another, nexuses, match(true))
	a.notify()
	a = t.abort(another, nexuses, match(false))
	a.Wait()
}
