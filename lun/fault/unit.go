package fault

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"lunlab/lun"
)

// Unit is a logical unit that fails as its rules say, and else does as the one
// behind it. Without rules it costs the look whether there are any.
//
// It is safe for concurrent use. A command that a rule holds back takes up what the
// transport gave it, and no more: a goroutine, of which there are as many as
// commands can be in flight, and at the most a timer. It ends when it is aborted.
type Unit struct {
	unit  lun.Unit
	clock lun.Clock

	// rules is replaced as a whole, so that commands look at it without a lock. It is
	// nil if there are none.
	rules atomic.Pointer[ruleSet]

	inFlight   atomic.Int64 // commands that came while there were rules
	attentions attentions

	mu     sync.Mutex // for changes
	lastID uint64
}

// ruleSet is the rules of a unit. It isn't changed.
type ruleSet struct {
	list    []*armed
	waits   bool // commands may have to wait
	attends bool // there are unit attentions among them
}

// New puts a unit in front of another, without rules.
func New(u lun.Unit) *Unit { return NewAt(u, lun.RealTime) }

// NewAt is [New] with rules that have another time.
func NewAt(u lun.Unit, c lun.Clock) *Unit { return &Unit{unit: u, clock: c} }

// MaxRules is how many rules a unit can have.
const MaxRules = 1024

// ErrTooMany says that a unit has [MaxRules] rules.
var ErrTooMany = fmt.Errorf("fault: there are %d rules, as many as there can be", MaxRules)

// ErrNoRule says that a rule isn't there.
var ErrNoRule = errors.New("no such rule")

// Add puts r in force, after the others, and returns the number that it is known
// by from then on. Commands that execute already don't meet it. r isn't to be
// changed any more. One that [Parse] didn't make may be refused.
func (u *Unit) Add(r *Rule) (id uint64, err error) {
	switch {
	case r.Act == MediumError && r.Blocks == nil:
		return 0, errors.New("fault: a medium error needs a range")
	case r.Act == Corrupt && r.Corrupt == nil:
		return 0, errors.New("fault: corrupt data needs to be said which")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []*armed
	if s := u.rules.Load(); s != nil {
		list = s.list
	}
	if len(list) >= MaxRules {
		return 0, ErrTooMany
	}
	u.lastID++
	u.setLocked(append(slices.Clone(list), arm(u.lastID, r, u.clock)))
	return u.lastID, nil
}

// Remove takes rules away: those with the given numbers, which all have to be
// there, or all if none is given. What was stalled by one goes on. A delay that a
// command waits for, it waits to the end, and one that is never answered stays so.
func (u *Unit) Remove(ids ...uint64) (removed int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.rules.Load()
	if s == nil {
		s = &ruleSet{}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(s.list, func(a *armed) bool { return a.id == id }) {
			return 0, fmt.Errorf("%w: %d", ErrNoRule, id)
		}
	}
	var kept []*armed
	for _, a := range s.list {
		if len(ids) == 0 || slices.Contains(ids, a.id) {
			close(a.gone)
			removed++
		} else {
			kept = append(kept, a)
		}
	}
	u.setLocked(kept)
	return removed, nil
}

func (u *Unit) setLocked(list []*armed) {
	if len(list) == 0 {
		u.rules.Store(nil)
		u.attentions.clear()
		return
	}
	s := &ruleSet{list: list}
	for _, a := range list {
		s.waits = s.waits || a.waits()
		s.attends = s.attends || a.Act == Attention
	}
	u.rules.Store(s)
	if !s.attends {
		u.attentions.clear()
	}
}

// Status is what a rule has done so far.
type Status struct {
	ID   uint64 `json:"id"`
	Rule string `json:"rule"`

	// Matched counts the commands that met the rule's conditions, nth, every,
	// probability and count apart. Fired counts those that something became of.
	Matched uint64 `json:"matched"`
	Fired   uint64 `json:"fired"`

	// Held is how many commands wait now because of it.
	Held int64 `json:"held"`

	// Bad is how many blocks of a medium error haven't been written yet.
	Bad uint64 `json:"bad_blocks,omitempty"`
}

// Rules lists the rules that are in force, in their order.
func (u *Unit) Rules() []Status {
	list := []Status{}
	if s := u.rules.Load(); s != nil {
		for _, a := range s.list {
			list = append(list, a.status())
		}
	}
	return list
}

// Unit returns the unit behind.
func (u *Unit) Unit() lun.Unit { return u.unit }

// Unwrap implements [lun.Wrapper].
func (u *Unit) Unwrap() lun.Unit { return u.unit }

// DataLength implements [lun.Unit].
func (u *Unit) DataLength(cdb []byte) (out, in uint64) { return u.unit.DataLength(cdb) }

// Blocking implements [lun.Unit]. It is true while there is a rule that commands
// may wait for.
func (u *Unit) Blocking() bool {
	if u.unit.Blocking() {
		return true
	}
	s := u.rules.Load()
	return s != nil && s.waits
}

// Notify implements [lun.Unit].
func (u *Unit) Notify(n *lun.Nexus, e lun.Event) {
	if e == lun.NexusLoss {
		u.attentions.forget(n)
	}
	u.unit.Notify(n, e)
}

// Execute implements [lun.Unit].
func (u *Unit) Execute(c *lun.Command) {
	s := u.rules.Load()
	if s == nil {
		u.unit.Execute(c)
		return
	}
	others := u.inFlight.Add(1) - 1
	defer u.inFlight.Add(-1)
	x := execution{unit: u.unit, attentions: &u.attentions, c: c, rules: s.list, others: int(others)}
	x.run(s.attends)
}
