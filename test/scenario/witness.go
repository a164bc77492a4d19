package scenario

import (
	"sync"
	"sync/atomic"

	"lunlab/lun"
)

// witness is a unit in front of another that notes what comes to it, and answers
// in its stead when it is told to.
type witness struct {
	lun.Unit

	act atomic.Pointer[func(*lun.Command) bool]

	mu      sync.Mutex
	tally   tally
	aborted uint64
	events  map[lun.Event]int
}

// tally counts commands that have been answered.
type tally struct {
	Commands uint64
	Failed   uint64 // with another status than GOOD
}

// Execute has act answer the command, or else the unit.
func (w *witness) Execute(c *lun.Command) {
	if act := w.act.Load(); act == nil || !(*act)(c) {
		w.Unit.Execute(c)
	}
	aborted := false
	select {
	case <-c.Cancel: // never of a command that can't be aborted
		aborted = true
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tally.Commands++
	if c.Status != lun.Good {
		w.tally.Failed++
	}
	if aborted {
		w.aborted++
	}
}

// Notify notes an event.
func (w *witness) Notify(n *lun.Nexus, e lun.Event) {
	w.mu.Lock()
	if w.events == nil {
		w.events = map[lun.Event]int{}
	}
	w.events[e]++
	w.mu.Unlock()
	w.Unit.Notify(n, e)
}

// answer has f see each command first: if it returns true, it has answered it.
// nil ends that.
func (w *witness) answer(f func(*lun.Command) bool) {
	if f == nil {
		w.act.Store(nil)
		return
	}
	w.act.Store(&f)
}

// counted returns the commands that have been answered so far.
func (w *witness) counted() tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tally
}

// abortions returns how many commands were aborted.
func (w *witness) abortions() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.aborted
}

// seen returns how often an event came.
func (w *witness) seen(e lun.Event) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events[e]
}
