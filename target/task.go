package target

import (
	"lunlab/lun"
)

// Task is a command in a task set. The transport that entered it owns it,
// except that task management may end it: see [Owner].
type Task struct {
	lun.Command

	// Tag names the task among those of its nexus.
	Tag uint64

	// Inline says that the transport executes the task on the goroutine that
	// received it, as the unit wasn't Blocking then. Such a task has no Cancel,
	// whatever the unit has become since.
	Inline bool

	nexus   *Nexus
	owner   Owner
	lu      *LogicalUnit
	next    *Task // in the nexus's table
	entered int64 // by now()

	// The rest is guarded by the nexus's lock.
	state  taskState
	cancel chan struct{}
	done   chan struct{} // closed at the end, if someone waits for it
}

type taskState uint8

const (
	stateOutside taskState = iota // not in a task set
	stateWaiting                  // for data, or for its turn
	stateRunning                  // in Execute
	stateAborted                  // in Execute, and not to be answered
)

// Owner is told of tasks that end by task management. TaskAborted is called
// once for a task that hadn't begun to execute: it has left the task set, and
// its memory may be used again. One that is executing is not told of; its
// [Task.Leave] returns false.
//
// TaskAborted is called without locks held, possibly by another nexus's goroutine.
type Owner interface {
	TaskAborted(*Task)
}

// Admission is what became of a task that wanted to enter a task set.
type Admission uint8

const (
	Admitted Admission = iota

	// DuplicateTag: a task with the same tag is there (an overlapped command,
	// SAM-5 5.10). The transport decides what that means.
	DuplicateTag

	// Full: the unit has as many commands as it may. The answer is TASK SET FULL.
	Full

	// NexusClosed: the nexus is gone; there is no one to answer.
	NexusClosed
)

// Enter puts t with tag into lu's task set. A task that is admitted leaves
// again by [Task.Leave], or by task management.
func (n *Nexus) Enter(t *Task, owner Owner, lu *LogicalUnit, tag uint64) Admission {
	t.nexus, t.owner, t.lu, t.Tag = n, owner, lu, tag
	t.Nexus = &n.id
	t.cancel, t.done, t.entered = nil, nil, now()
	head := &n.tasks[tag%taskBuckets]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return NexusClosed
	}
	for o := *head; o != nil; o = o.next {
		if o.Tag == tag {
			return DuplicateTag
		}
	}
	if !lu.enter() {
		return Full
	}
	t.state = stateWaiting
	t.next, *head = *head, t
	return Admitted
}

// Find is the task with that tag, or nil.
func (n *Nexus) Find(tag uint64) *Task {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.findLocked(tag)
}

func (n *Nexus) findLocked(tag uint64) *Task {
	for t := n.tasks[tag%taskBuckets]; t != nil; t = t.next {
		if t.Tag == tag {
			return t
		}
	}
	return nil
}

// Owner is whom the task was entered for.
func (t *Task) Owner() Owner { return t.owner }

// LogicalUnit is the unit that the task was entered for.
func (t *Task) LogicalUnit() *LogicalUnit { return t.lu }

// Execute runs the task, unless it was aborted meanwhile: then it returns false,
// and the task is no longer the caller's. After true, [Task.Leave] is due.
func (t *Task) Execute() bool {
	n := t.nexus
	n.mu.Lock()
	if t.state != stateWaiting {
		n.mu.Unlock()
		return false
	}
	t.state = stateRunning
	if !t.Inline && t.lu.unit.Blocking() {
		t.cancel = make(chan struct{})
		t.Cancel = t.cancel
	}
	n.mu.Unlock()
	if len(t.CDB) > 0 && t.CDB[0] == opReportLUNs {
		n.reportLUNs(&t.Command)
	} else {
		t.lu.unit.Execute(&t.Command)
	}
	return true
}

// FailUnexecuted ends a task that hasn't begun to execute with CHECK CONDITION and s: it
// leaves the task set. False means that it was aborted meanwhile.
func (t *Task) FailUnexecuted(s lun.Sense) bool {
	if !t.leave(stateWaiting) {
		return false
	}
	t.Fail(s)
	return true
}

// Leave takes an executed task out of the task set. It tells whether the
// initiator is to be answered: not if the task was aborted.
func (t *Task) Leave() bool { return t.leave(stateRunning) }

func (t *Task) leave(want taskState) bool {
	n := t.nexus
	n.mu.Lock()
	if t.state == stateOutside {
		n.mu.Unlock()
		return false
	}
	ok := t.state == want
	n.unlink(t)
	done := t.done
	n.mu.Unlock()
	if !ok {
		t.lu.counters.aborted.Add(1)
	} else if want == stateRunning {
		t.lu.counters.count(t)
	}
	if done != nil {
		close(done)
	}
	return ok
}

func (n *Nexus) unlink(t *Task) {
	for p := &n.tasks[t.Tag%taskBuckets]; *p != nil; p = &(*p).next {
		if *p == t {
			*p = t.next
			break
		}
	}
	t.next = nil
	t.state = stateOutside
	t.lu.leave()
}
