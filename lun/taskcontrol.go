package lun

import "sync/atomic"

// TaskControl is where a logical unit and the target that keeps its task set
// meet: the unit says there how its Control mode page wants tasks treated
// (SPC-5 7.5.8), and the target which task management functions it has. Both
// may do so at any time. The zero value is a page of zeros and no functions.
type TaskControl struct {
	rules     atomic.Uint32
	functions atomic.Uint32
}

// TaskRules are the fields of the Control mode page that task sets go by.
type TaskRules struct {
	// PerNexus is TST 001b: each I_T nexus has a task set of its own.
	PerNexus bool

	// Restricted is QUEUE ALGORITHM MODIFIER 0h: SIMPLE commands of a nexus take
	// effect in the order in which they came.
	Restricted bool

	// AbortedStatus is TAS: commands that another nexus aborts end with TASK
	// ABORTED, and not in silence.
	AbortedStatus bool

	// OnError is what CHECK CONDITION does to the other commands of the task set.
	OnError ErrorRule
}

// ErrorRule is the QERR field.
type ErrorRule uint8

const (
	ResumeAll  ErrorRule = 0 // they go on, after an ACA condition if there is one
	AbortAll   ErrorRule = 1
	AbortNexus ErrorRule = 3 // those of the nexus that had the error
)

const (
	rulePerNexus = 1 << iota
	ruleRestricted
	ruleAbortedStatus
	ruleErrors // two bits
)

// Rules returns what holds now.
func (c *TaskControl) Rules() TaskRules {
	r := c.rules.Load()
	return TaskRules{
		PerNexus:      r&rulePerNexus != 0,
		Restricted:    r&ruleRestricted != 0,
		AbortedStatus: r&ruleAbortedStatus != 0,
		OnError:       ErrorRule(r / ruleErrors & 3),
	}
}

// SetRules changes them.
func (c *TaskControl) SetRules(r TaskRules) {
	v := uint32(r.OnError&3) * ruleErrors
	for bit, on := range map[uint32]bool{rulePerNexus: r.PerNexus, ruleRestricted: r.Restricted, ruleAbortedStatus: r.AbortedStatus} {
		if on {
			v |= bit
		}
	}
	c.rules.Store(v)
}

// Restricted is that field of Rules, for a look at each command.
func (c *TaskControl) Restricted() bool { return c.rules.Load()&ruleRestricted != 0 }

// TaskFunctions is a set of task management functions, as bytes 0 and 1 of the
// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS parameter data (SPC-5 6.36).
type TaskFunctions uint16

const (
	AbortTaskFunction        TaskFunctions = 0x8000
	AbortTaskSetFunction     TaskFunctions = 0x4000
	ClearACAFunction         TaskFunctions = 0x2000 // and ACA conditions with it
	ClearTaskSetFunction     TaskFunctions = 0x1000
	LogicalUnitResetFunction TaskFunctions = 0x0800
	QueryTaskFunction        TaskFunctions = 0x0400
	QueryAsyncEventFunction  TaskFunctions = 0x0004
	QueryTaskSetFunction     TaskFunctions = 0x0002
	NexusResetFunction       TaskFunctions = 0x0001
)

// Offer says which functions the unit's target has, with ClearACAFunction for
// one that establishes ACA conditions for commands with NACA (SAM-5 5.9).
func (c *TaskControl) Offer(f TaskFunctions) { c.functions.Store(uint32(f)) }

// Offered returns them.
func (c *TaskControl) Offered() TaskFunctions { return TaskFunctions(c.functions.Load()) }

// OfferedTo returns those that a nexus can ask for.
func (c *TaskControl) OfferedTo(n *Nexus) TaskFunctions {
	if n.Functions != 0 {
		return c.Offered() & n.Functions
	}
	return c.Offered()
}

// TaskController is a [Unit] that minds its task set.
type TaskController interface {
	// TaskControl is the same for the life of the unit.
	TaskControl() *TaskControl

	// Attention is what QUERY ASYNCHRONOUS EVENT tells of (SAM-5 7.9): how many
	// unit attention conditions are pending for the nexus, and the first of them.
	Attention(*Nexus) (count int, first Sense)
}

// Wrapper is a [Unit] that stands in front of another, and treats tasks as it
// wants them treated.
type Wrapper interface {
	Unwrap() Unit
}

// TaskControllerOf finds the TaskController that a unit is or stands in front
// of, or nil.
func TaskControllerOf(u Unit) TaskController {
	for {
		if c, ok := u.(TaskController); ok {
			return c
		}
		w, ok := u.(Wrapper)
		if !ok {
			return nil
		}
		u = w.Unwrap()
	}
}
