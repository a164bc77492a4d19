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

	// Guarded by the nexus's lock.
	state  taskState
	cancel chan struct{}
	done   chan struct{} // closed at the end, if someone waits for it

	// silent says of an aborted task that its initiator isn't told.
	silent bool

	// listed says that the task set has it; it changes under both locks.
	listed bool

	// Guarded by the task set's lock.
	places [scopeKinds]place
	age    uint64
	lane   *lane
	parked bool // it waits for its turn
}

type taskState uint8

const (
	stateOutside taskState = iota // not in a task set
	stateWaiting                  // for data, or for Execute
	stateParked                   // Execute was called, and had to wait
	stateReady                    // its owner is told that it may execute
	stateDoomed                   // the same, and aborted meanwhile
	stateRunning                  // in Execute
	stateAborted                  // in Execute, and aborted
)

// Owner is told what becomes of its tasks while it isn't looking.
type Owner interface {
	// TaskAborted is called once for a task that task management has ended before
	// it executed: it has left the task set, and its memory may be used again. If
	// its Status is TASK ABORTED the initiator is to be answered so, else it
	// isn't. A task that is executing is not told of; see [Task.Leave].
	//
	// It is called without locks held, possibly by another nexus's goroutine.
	TaskAborted(*Task)

	// TaskDeferred is called by [Task.Execute] when other tasks go first: the
	// task is to be kept, its data-out with it, until TaskReady or TaskAborted.
	// Locks are held: it must not block or call the target.
	TaskDeferred(*Task)

	// TaskReady is called, once and without locks held, when the turn of a
	// deferred task has come. The owner has to call [Task.Execute] again, or
	// [Task.FailUnexecuted], and not from here: it is called by whoever made
	// room.
	TaskReady(*Task)
}

// Admission is what became of a task that wanted to enter a task set.
type Admission uint8

const (
	Admitted Admission = iota

	// DuplicateTag: a task with the same tag is there (an overlapped command,
	// SAM-5 5.10). The transport decides what that means.
	DuplicateTag

	// Refused: the task's Status and Sense are the answer. It is TASK SET FULL
	// where the unit has as many commands as it may, LOGICAL UNIT NOT SUPPORTED
	// where it was removed since it was looked up, and others where there is an ACA
	// condition, or should be (SAM-5 5.9.2).
	Refused

	// NexusClosed: the nexus is gone; there is no one to answer.
	NexusClosed
)

// Enter puts t with tag into lu's task set. A task that is admitted leaves
// again by [Task.Leave], or by task management. Tasks are as old as their
// entering says; it is not to be called for two tasks of a nexus at once if
// their order matters.
func (n *Nexus) Enter(t *Task, owner Owner, lu *LogicalUnit, tag uint64) Admission {
	t.nexus, t.owner, t.lu, t.Tag = n, owner, lu, tag
	t.Nexus = &n.id
	t.cancel, t.done, t.silent, t.entered = nil, nil, false, now()
	n.mu.Lock()
	if t.Attr != lun.Simple || lu.set.wanted() {
		n.mu.Unlock()
		return lu.set.enter(t)
	}
	defer n.mu.Unlock()
	if a := n.mayEnter(t); a != Admitted {
		return a
	}
	return n.enterLocked(t)
}

func (n *Nexus) mayEnter(t *Task) Admission {
	if n.closed {
		return NexusClosed
	}
	if n.tasks.find(t.Tag) != nil {
		return DuplicateTag
	}
	return Admitted
}

func (n *Nexus) enterLocked(t *Task) Admission {
	if t.lu.removed.Load() {
		t.Fail(lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCLogicalUnitNotSupported})
		return Refused
	}
	if !t.lu.enter() {
		t.Status = lun.TaskSetFull
		return Refused
	}
	t.state = stateWaiting
	n.tasks.insert(t)
	return Admitted
}

// Find is the task with that tag, or nil.
func (n *Nexus) Find(tag uint64) *Task {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tasks.find(tag)
}

// Owner is whom the task was entered for.
func (t *Task) Owner() Owner { return t.owner }

// LogicalUnit is the unit that the task was entered for.
func (t *Task) LogicalUnit() *LogicalUnit { return t.lu }

// Execute runs the task; then it returns true, and [Task.Leave] is due. False
// means that the task is not the caller's: it was aborted, or it has to wait and
// the owner hears of it again.
func (t *Task) Execute() bool {
	n := t.nexus
	n.mu.Lock()
	if t.listed {
		n.mu.Unlock()
		if !t.lu.set.begin(t) {
			return false
		}
	} else if !t.begin() {
		return false
	}
	if len(t.CDB) > 0 && t.CDB[0] == opReportLUNs {
		n.reportLUNs(&t.Command)
	} else {
		t.lu.unit.Execute(&t.Command)
	}
	return true
}

// begin lets a task execute, unless it was aborted. The nexus's lock is held, and
// released.
func (t *Task) begin() bool {
	n := t.nexus
	if t.state == stateDoomed {
		n.mu.Unlock()
		t.leave(stateReady)
		return false
	}
	ok := t.state == stateWaiting || t.state == stateReady
	if ok {
		t.state = stateRunning
		if !t.Inline && lun.Waits(t.lu.unit, t.CDB) {
			t.cancel = make(chan struct{})
			t.Cancel = t.cancel
		}
	}
	n.mu.Unlock()
	return ok
}

// begin is [Task.begin] for a task that the set has: it may have to wait.
func (s *taskSet) begin(t *Task) bool {
	n := t.nexus
	s.mu.Lock()
	n.mu.Lock()
	if t.state == stateWaiting && t.listed && !s.may(t) {
		t.owner.TaskDeferred(t)
		t.state = stateParked
		s.park(t)
		n.mu.Unlock()
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	return t.begin()
}

// FailUnexecuted ends a task that hasn't begun to execute with CHECK CONDITION and s: it
// leaves the task set. False means that it was aborted meanwhile.
func (t *Task) FailUnexecuted(s lun.Sense) bool {
	n := t.nexus
	n.mu.Lock()
	if t.state == stateWaiting || t.state == stateReady {
		t.state = stateReady
		t.Fail(s)
	}
	n.mu.Unlock()
	return t.leave(stateReady)
}

// Leave takes an executed task out of the task set. It tells whether the
// initiator is to be answered. If the task was aborted meanwhile, it isn't, or
// it is with another Status than before: TASK ABORTED.
func (t *Task) Leave() bool { return t.leave(stateRunning) }

func (t *Task) leave(want taskState) (answer bool) {
	n := t.nexus
	n.mu.Lock()
	state := t.state
	if state != want && state != stateAborted && state != stateDoomed {
		n.mu.Unlock()
		return false
	}
	n.unlink(t)
	done, listed := t.done, t.listed
	n.mu.Unlock()
	ended := state == want
	if ended {
		answer = true
		if want == stateRunning {
			t.lu.counters.count(t)
		}
		if t.Status == lun.CheckCondition {
			t.failed()
		}
	} else {
		t.lu.counters.aborted.Add(1)
		answer = t.endAborted()
	}
	if listed || ended && t.Status == lun.CheckCondition && naca(t.CDB) {
		t.lu.set.left(t, ended)
	}
	if state == stateDoomed {
		answer = false
		t.owner.TaskAborted(t)
	}
	if done != nil {
		close(done)
	}
	return answer
}

// endAborted gives an aborted task its answer, and tells whether there is one.
// One with AnswerAborted has been answered already.
func (t *Task) endAborted() bool {
	if t.silent || t.AnswerAborted {
		t.Status = lun.Good
		return false
	}
	t.Status, t.Sense, t.InLen, t.OutLen = lun.TaskAborted, nil, 0, 0
	return true
}

// failed does to the others what QERR says (SPC-5 7.5.8), when a task has ended
// with CHECK CONDITION.
func (t *Task) failed() {
	r := t.lu.control.Rules()
	var nexuses []*Nexus
	switch {
	case r.OnError == lun.AbortAll && !r.PerNexus:
		nexuses = t.nexus.target.list()
	case r.OnError == lun.AbortAll, r.OnError == lun.AbortNexus:
		nexuses = []*Nexus{t.nexus}
	default:
		return
	}
	a := t.nexus.target.abort(t.nexus, nexuses, of(t.lu))
	a.notify()
}

func (n *Nexus) unlink(t *Task) {
	n.tasks.remove(t)
	t.state = stateOutside
	t.lu.leave()
}
