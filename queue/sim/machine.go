package sim

import (
	"container/heap"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// machine runs tasks one at a time, in virtual time. A task is a piece of the
// kernel's work (a system call, an interrupt, a work item) written in sequence;
// it calls [task.step] between two steps that other CPUs can come between. Which
// task does the next step is the machine's choice: see [Schedule].
//
// Everything here runs on the goroutine that called run, or on a coroutine
// that it waits for, so nothing needs a lock.
type machine struct {
	now      time.Duration
	ready    []*task // in the order they became so; the current one among them
	waiting  []*task // for a condition
	sleepers []*task // for wake
	timers   timers
	serial   int

	schedule scheduler
	steps    int
	limit    int
	next     *task // chosen by the task that ran
	chosen   bool
	over     bool

	rng   *rand.Rand
	trace *Trace
}

// task is a coroutine. Its methods are called by itself, but for wake.
type task struct {
	m     *machine
	id    int
	name  string
	cpu   int
	cond  func() bool
	awake bool // in ready
	yield func(struct{}) bool
	next  func() (struct{}, bool)
	stop  func()
}

// stopped unwinds a task whose machine has stopped.
type stopped struct{}

// spawn starts a task, which is ready at once.
func (m *machine) spawn(name string, cpu int, f func(*task)) *task {
	m.serial++
	t := &task{m: m, id: m.serial, name: name, cpu: cpu, awake: true}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(stopped); !ok {
					panic(r)
				}
			}
		}()
		t.yield = yield
		f(t)
	})
	m.ready = append(m.ready, t)
	return t
}

// step lets any other task come next.
func (t *task) step() {
	m := t.m
	if next := m.choose(t); next != t {
		m.next, m.chosen = next, true
		t.pause()
	}
}

func (t *task) pause() {
	if !t.yield(struct{}{}) {
		panic(stopped{})
	}
}

func (t *task) unready() {
	t.awake = false
	t.m.ready = slices.DeleteFunc(t.m.ready, func(o *task) bool { return o == t })
}

// sleep ends when something calls wake.
func (t *task) sleep() {
	t.unready()
	t.m.sleepers = append(t.m.sleepers, t)
	t.pause()
}

// wake ends the task's sleep, if it sleeps.
func (t *task) wake() {
	if t.awake || t.cond != nil {
		return
	}
	t.m.sleepers = slices.DeleteFunc(t.m.sleepers, func(o *task) bool { return o == t })
	t.awake = true
	t.m.ready = append(t.m.ready, t)
}

// until waits for a condition, which has no side effects.
func (t *task) until(cond func() bool) {
	for !cond() { // it can be false again when the task gets its turn
		t.unready()
		t.cond = cond
		t.m.waiting = append(t.m.waiting, t)
		t.pause()
	}
}

// delay lets virtual time pass.
func (t *task) delay(d time.Duration) {
	past := false
	t.m.after(d, false, func() { past = true })
	t.until(func() bool { return past })
}

// timer calls f at a time. A patient one is called only when no task is ready
// before.
type timer struct {
	at      time.Duration
	serial  int
	patient bool
	f       func()
	dead    bool
}

type timers []*timer

func (h timers) Len() int { return len(h) }
func (h timers) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}
func (h timers) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timers) Push(x any)   { *h = append(*h, x.(*timer)) }
func (h *timers) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}

func (m *machine) after(d time.Duration, patient bool, f func()) *timer {
	m.serial++
	t := &timer{at: m.now + d, serial: m.serial, patient: patient, f: f}
	heap.Push(&m.timers, t)
	return t
}

// first is the earliest timer that is alive.
func (m *machine) first() *timer {
	for len(m.timers) > 0 {
		if t := m.timers[0]; !t.dead {
			return t
		}
		heap.Pop(&m.timers)
	}
	return nil
}

// fire advances the clock to the earliest timer.
func (m *machine) fire() bool {
	t := m.first()
	if t == nil {
		return false
	}
	heap.Pop(&m.timers)
	m.now = max(m.now, t.at)
	t.f()
	m.poll()
	return true
}

func (m *machine) poll() {
	m.waiting = slices.DeleteFunc(m.waiting, func(t *task) bool {
		if !t.cond() {
			return false
		}
		t.cond, t.awake = nil, true
		m.ready = append(m.ready, t)
		return true
	})
}

// choose says which task does the next step; nil if none is ready or the run
// is over. current is the one that did the last, if it can go on.
func (m *machine) choose(current *task) *task {
	m.steps++
	if m.steps >= m.limit {
		m.over = true
	}
	if m.over {
		return nil
	}
	m.poll()
	// The clock counts as one more that could come next.
	n := len(m.ready)
	if t := m.first(); t != nil && !t.patient {
		n++
	}
	if pick, ok := m.schedule.deviate(m.steps, n); ok {
		if pick < len(m.ready) {
			return m.ready[pick]
		}
		m.fire()
	}
	switch {
	case current != nil && current.awake:
		return current
	case len(m.ready) > 0:
		return m.ready[0]
	}
	return nil
}

// run does steps until nothing is left to do, the limit of steps is reached or
// end is called. idle is called before the clock moves with no task ready; the
// run ends if it says so.
func (m *machine) run(idle func() bool) {
	var current *task
	defer func() {
		for _, t := range m.all() {
			t.stop()
		}
	}()
	for !m.over {
		t := m.next
		if !m.chosen {
			t = m.choose(current)
		}
		m.next, m.chosen = nil, false
		if m.over {
			return
		}
		if t == nil {
			if idle() || m.over || !m.fire() {
				return
			}
			continue
		}
		current = t
		if _, more := t.next(); !more {
			t.unready()
			current = nil
		}
	}
}

func (m *machine) all() []*task {
	return slices.Concat(m.ready, m.waiting, m.sleepers)
}

// tracef notes an event, if the run is traced.
func (m *machine) tracef(who, format string, args ...any) {
	if m.trace != nil {
		m.trace.add(m.now, who, fmt.Sprintf(format, args...))
	}
}
