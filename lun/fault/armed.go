package fault

import (
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"lunlab/lun"
)

// armed is a rule that is in force, with its counts.
type armed struct {
	*Rule
	clock lun.Clock
	id    uint64
	since time.Time
	gone  chan struct{} // closed when the rule is removed

	matched, fired atomic.Uint64
	held           atomic.Int64
	stalled        atomic.Bool // a Stall has begun

	bad *badBlocks // of a MediumError

	mu     sync.Mutex
	random *rand.Rand
}

func arm(id uint64, r *Rule, clock lun.Clock) *armed {
	a := &armed{Rule: r, clock: clock, id: id, since: clock.Now(), gone: make(chan struct{}), random: rand.New(rand.NewPCG(r.Seed, 0))}
	if r.Act == MediumError {
		a.bad = newBadBlocks(*r.Blocks)
	}
	return a
}

func (a *armed) status() Status {
	s := Status{ID: a.id, Rule: a.Text, Matched: a.matched.Load(), Fired: a.fired.Load(), Held: a.held.Load()}
	if a.bad != nil {
		s.Bad = a.bad.count()
	}
	return s
}

// left is how long the rule stays in force: 0 if it isn't, less if it has no end.
func (a *armed) left() time.Duration {
	if a.After == 0 && a.For == 0 {
		return -1
	}
	t := a.clock.Now().Sub(a.since) - a.After
	switch {
	case t < 0:
		return 0
	case a.For == 0:
		return -1
	}
	return max(0, a.For-t)
}

// matches tells whether a command meets the conditions, and counts it then. lba is
// the first block that the rule is about.
func (a *armed) matches(c *lun.Command, x *extent, others int) (lba uint64, ok bool) {
	if others < a.Above || a.left() == 0 || !a.about(c.CDB) {
		return 0, false
	}
	if a.Initiator != "" {
		name, _, _ := strings.Cut(c.Nexus.Name, ",")
		if ok, err := path.Match(a.Initiator, name); err != nil || !ok {
			return 0, false
		}
	}
	lba = x.first.First
	if a.bad != nil {
		if x.access&reads == 0 {
			return 0, false
		}
		if lba, ok = a.bad.first(x.first); !ok {
			return 0, false
		}
	} else if a.Blocks != nil {
		if lba, ok = x.overlap(*a.Blocks); !ok {
			return 0, false
		}
	}
	return lba, true
}

// about tells whether the rule is about such a command.
func (a *armed) about(cdb []byte) bool {
	if len(cdb) == 0 {
		return len(a.Commands) == 0
	}
	if a.Act == Attention && (cdb[0] == inquiry || cdb[0] == requestSense) {
		return false
	}
	return len(a.Commands) == 0 || slices.ContainsFunc(a.Commands, func(m Command) bool { return m.is(cdb) })
}

// is tells whether a CDB, which isn't empty, is of the command.
func (m Command) is(cdb []byte) bool {
	if m.Code != cdb[0] || m.Action < 0 {
		return m.Code == cdb[0]
	}
	action := lun.ServiceAction(cdb)
	if action < 0 && len(cdb) > 1 {
		action = int32(cdb[1] & 0x1f) // as all have it that have one
	}
	return action == m.Action
}

// fires tells whether the rule befalls a command that matches, and counts it.
func (a *armed) fires() bool {
	n := a.matched.Add(1)
	switch {
	case a.Nth > 0 && n != a.Nth:
		return false
	case a.Every > 0 && n%a.Every != 0:
		return false
	case a.Probability > 0:
		a.mu.Lock()
		hit := a.random.Float64() < a.Probability
		a.mu.Unlock()
		if !hit {
			return false
		}
	}
	for {
		f := a.fired.Load()
		if a.Count > 0 && f >= a.Count {
			return false
		}
		if a.fired.CompareAndSwap(f, f+1) {
			return true
		}
	}
}

// unfire takes back what fires has counted, of a command that the rule could do
// nothing to.
func (a *armed) unfire() { a.fired.Add(^uint64(0)) }

func (a *armed) delay() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.Delay.draw(a.random)
}

// wait waits for a time, or without an end if it is negative, and tells whether
// the command goes on afterwards: not if it was aborted. until ends it early.
func (a *armed) wait(c *lun.Command, d time.Duration, until <-chan struct{}) bool {
	a.held.Add(1)
	defer a.held.Add(-1)
	a.clock.Wait(d, until, c.Cancel)
	select {
	case <-c.Cancel:
		return false
	default:
		return true
	}
}
