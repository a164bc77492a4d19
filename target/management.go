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
type Aborting struct {
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
	for _, tell := range a.tell {
		tell()
	}
	a.running, a.tell = nil, nil
}

// collect aborts the tasks of n that match, and returns how many there were.
func (a *Aborting) collect(n *Nexus, match func(*Task) bool) int {
	var gone []*Task
	count := 0
	n.mu.Lock()
	for i := range n.tasks {
		for t := n.tasks[i]; t != nil; {
			next := t.next
			if match(t) {
				count++
				if t.state == stateWaiting {
					n.unlink(t)
					gone = append(gone, t)
				} else {
					a.abortRunning(t)
				}
			}
			t = next
		}
	}
	n.mu.Unlock()
	for _, t := range gone {
		t.lu.counters.aborted.Add(1)
		t.owner.TaskAborted(t)
	}
	return count
}

func (a *Aborting) abortRunning(t *Task) {
	if t.state == stateRunning {
		t.state = stateAborted
		if t.cancel != nil {
			close(t.cancel)
		}
	}
	if t.done == nil {
		t.done = make(chan struct{})
	}
	a.running = append(a.running, t.done)
}

// AbortTask ends the task with that tag, if there is one for lu (SAM-5 7.2).
func (n *Nexus) AbortTask(lu *LogicalUnit, tag uint64) (a Aborting, found bool) {
	return a, a.collect(n, func(t *Task) bool { return t.Tag == tag && t.lu == lu }) > 0
}

// AbortTaskSet ends this nexus's tasks for lu but the one with tag except
// (SAM-5 7.3).
func (n *Nexus) AbortTaskSet(lu *LogicalUnit) (a Aborting) {
	a.collect(n, func(t *Task) bool { return t.lu == lu })
	return a
}

// AbortWhere ends this nexus's tasks that match. match is called with a lock held,
// and must not call the nexus or the task.
func (n *Nexus) AbortWhere(match func(*Task) bool) (a Aborting) {
	a.collect(n, match)
	return a
}

// ClearTaskSet ends the tasks of all nexuses for lu (SAM-5 7.5).
func (n *Nexus) ClearTaskSet(lu *LogicalUnit) (a Aborting) {
	cleared := false
	for _, o := range n.target.list() {
		k := a.collect(o, func(t *Task) bool { return t.lu == lu })
		cleared = cleared || k > 0 && o != n
	}
	if cleared {
		a.tell = append(a.tell, func() { lu.unit.Notify(&n.id, lun.CommandsCleared) })
	}
	return a
}

// LogicalUnitReset resets lu (SAM-5 6.3.3, 7.7).
func (n *Nexus) LogicalUnitReset(lu *LogicalUnit) (a Aborting) {
	for _, o := range n.target.list() {
		a.collect(o, func(t *Task) bool { return t.lu == lu })
	}
	a.tell = append(a.tell, func() { lu.unit.Notify(&n.id, lun.LogicalUnitReset) })
	return a
}

// TargetReset resets all logical units, those that n doesn't see among them
// (SAM-5 6.3.2: a hard reset).
func (n *Nexus) TargetReset() (a Aborting) {
	for _, o := range n.target.list() {
		a.collect(o, func(*Task) bool { return true })
	}
	for _, lu := range *n.target.units.Load() {
		a.tell = append(a.tell, func() { lu.unit.Notify(&n.id, lun.HardReset) })
	}
	return a
}

// NexusReset ends this nexus's tasks for all units and tells the units of a
// loss, as if the nexus had gone and come again (SAM-5 7.6).
func (n *Nexus) NexusReset() (a Aborting) {
	a.collect(n, func(*Task) bool { return true })
	for _, lu := range *n.target.units.Load() {
		a.tell = append(a.tell, func() { lu.unit.Notify(&n.id, lun.NexusLoss) })
	}
	return a
}

// QueryTask tells whether the task is in lu's task set (SAM-5 7.9).
func (n *Nexus) QueryTask(lu *LogicalUnit, tag uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.findLocked(tag)
	return t != nil && t.lu == lu
}

// QueryTaskSet tells whether this nexus has tasks in lu's task set (SAM-5 7.10).
func (n *Nexus) QueryTaskSet(lu *LogicalUnit) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, t := range n.tasks {
		for ; t != nil; t = t.next {
			if t.lu == lu {
				return true
			}
		}
	}
	return false
}

func (t *Target) list() []*Nexus {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.nexuses))
}

// AbortTasksOf ends the tasks of nexus id for the unit at number, as PREEMPT AND
// ABORT asks for (SPC-5 5.13.11.2.6). It doesn't wait for those that execute,
// because it may be called by one of them.
func (t *Target) AbortTasksOf(number uint16, id *lun.Nexus) {
	var a Aborting
	for _, n := range t.list() {
		if &n.id == id {
			a.collect(n, func(k *Task) bool { return k.lu.kind == kindUnit && k.lu.number == number })
		}
	}
}
