package target_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/target"
)

// model says which tasks may run, straight from SAM-5 8.6 and 5.9: it compares
// each with all that are older, and keeps no more state than their list.
type model struct {
	rules   lun.TaskRules
	tasks   []*actor // in the task set, the oldest first
	faulted []int    // nexuses
}

// same tells whether two nexuses' tasks share a task set.
func (m *model) same(a, b int) bool { return !m.rules.PerNexus || a == b }

func (m *model) fault(nexus int) (any, own bool) {
	any = slices.ContainsFunc(m.faulted, func(n int) bool { return m.same(n, nexus) })
	return any, slices.Contains(m.faulted, nexus)
}

func (m *model) may(a *actor) bool {
	if any, own := m.fault(a.nexus); any {
		return own && a.Attr == lun.ACA || !own && a.CDB[0] == 0x5f
	}
	if a.Attr == lun.HeadOfQueue || a.Attr == lun.ACA {
		return true
	}
	older := true
	for _, o := range m.tasks {
		if o == a {
			older = false
			continue
		}
		if !m.same(o.nexus, a.nexus) {
			continue
		}
		switch {
		case o.Attr == lun.HeadOfQueue, o.Attr == lun.ACA:
			return false
		case older && (a.Attr == lun.Ordered || o.Attr == lun.Ordered || m.rules.Restricted && o.nexus == a.nexus):
			return false
		}
	}
	return true
}

func (m *model) remove(a *actor) {
	m.tasks = slices.DeleteFunc(m.tasks, func(o *actor) bool { return o == a })
}

func (m *model) clear(nexus int) {
	m.faulted = slices.DeleteFunc(m.faulted, func(n int) bool { return n == nexus })
}

// ended is what the end of a task does to the condition.
func (m *model) ended(a *actor, naca bool) {
	m.remove(a)
	if a.Status != lun.CheckCondition {
		return
	}
	any, own := m.fault(a.nexus)
	switch {
	case naca && !any:
		m.faulted = append(m.faulted, a.nexus)
	case !naca && own && a.Attr == lun.ACA:
		m.clear(a.nexus)
	}
}

// TestModel takes thousands of random steps, and compares after each what runs
// with what the model says.
func TestModel(t *testing.T) {
	for seed := range uint64(12) {
		rules := lun.TaskRules{PerNexus: seed&1 != 0, Restricted: seed&2 != 0}
		t.Run(fmt.Sprintf("%+v, seed %d", rules, seed), func(t *testing.T) {
			s := newStage(t, rules, target.Limits{})
			m := &model{rules: rules}
			r := rand.New(rand.NewPCG(seed, 4))
			for step := range 1500 {
				randomStep(s, m, r)
				s.resume()
				for _, a := range m.tasks {
					if a.executed() && a.running != (a.began || m.may(a)) {
						t.Fatalf("step %d: %s %v of nexus %d, of CDB %x: runs %v", step, a.name, a.Attr, a.nexus, a.CDB, a.running)
					}
					a.began = a.running
				}
				if n := s.lu.InFlight(); n != len(m.tasks) {
					t.Fatalf("step %d: %d in flight, want %d", step, n, len(m.tasks))
				}
			}
		})
	}
}

// executed tells whether Execute has been called.
func (a *actor) executed() bool { return a.running || a.waits }

func randomStep(s *stage, m *model, r *rand.Rand) {
	s.t.Helper()
	pick := func(which func(*actor) bool) *actor {
		var list []*actor
		for _, a := range m.tasks {
			if which(a) {
				list = append(list, a)
			}
		}
		if len(list) == 0 {
			return nil
		}
		return list[r.IntN(len(list))]
	}
	aborted := func(which func(*actor) bool) {
		for _, a := range slices.Clone(m.tasks) {
			if !which(a) {
				continue
			}
			if a.running {
				a.running = false
				if a.Leave() && a.Status != lun.TaskAborted {
					s.t.Fatalf("%s was aborted and ends with %02x", a.name, a.Status)
				}
			} else if !a.aborted {
				s.t.Fatalf("%s waits, and wasn't aborted", a.name)
			}
			m.remove(a)
		}
	}
	n := r.IntN(len(s.nexuses))
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		kinds := []string{"", "", "", "f", "n", "fn", "p"}
		spec := fmt.Sprintf("%c%d%s", "SSSSOOHA"[r.IntN(8)], n, kinds[r.IntN(len(kinds))])
		a := s.enter(spec)
		any, own := m.fault(n)
		accepted := a.Attr != lun.ACA
		switch {
		case own:
			accepted = a.Attr == lun.ACA && !slices.ContainsFunc(m.tasks, func(o *actor) bool { return o.nexus == n && o.Attr == lun.ACA })
		case any:
			accepted = a.Attr != lun.ACA && a.CDB[0] == 0x5f
		}
		if a.refused == accepted {
			s.t.Fatalf("%s: refused %v with %02x", spec, a.refused, a.Status)
		}
		if accepted {
			m.tasks = append(m.tasks, a)
		}
	case 4, 5, 6:
		if a := pick(func(a *actor) bool { return !a.executed() }); a != nil {
			s.execute(a)
		}
	case 7, 8:
		if a := pick(func(a *actor) bool { return a.running }); a != nil {
			a.running = false
			if r.IntN(10) == 0 { // like MODE SELECT
				m.rules = lun.TaskRules{PerNexus: r.IntN(2) == 0, Restricted: r.IntN(2) == 0}
				s.unit.control.SetRules(m.rules)
			}
			if !a.Leave() {
				s.t.Fatalf("%s isn't answered", a.name)
			}
			m.ended(a, len(a.CDB) == 6 && a.CDB[5]&4 != 0)
		}
	case 9:
		if a := pick(func(*actor) bool { return true }); a != nil {
			_, found := s.nexuses[a.nexus].AbortTask(s.lu, a.Tag)
			if !found {
				s.t.Fatalf("%s isn't there", a.name)
			}
			aborted(func(o *actor) bool { return o == a })
		}
	case 10:
		s.nexuses[n].ClearACA(s.lu)
		if _, own := m.fault(n); own {
			m.clear(n)
			aborted(func(o *actor) bool { return o.nexus == n && o.Attr == lun.ACA })
		}
	case 11:
		if r.IntN(8) == 0 {
			s.nexuses[n].LogicalUnitReset(s.lu)
			m.faulted = nil
			aborted(func(*actor) bool { return true })
		}
	}
}

// racer is a task whose steps are on goroutines of their own.
type racer struct {
	target.Task
	crowd *crowd
	nexus int
	order int64 // of entering, in its nexus
	ends  atomic.Int32
}

func (r *racer) TaskAborted(*target.Task) { r.end() }

func (r *racer) TaskDeferred(*target.Task) {}
func (r *racer) TaskReady(*target.Task)    { r.run() }

func (r *racer) run() {
	r.crowd.wg.Go(func() {
		if r.Execute() {
			r.Leave()
			r.end()
		}
	})
}

func (r *racer) end() {
	if r.ends.Add(1) != 1 {
		r.crowd.t.Errorf("task %d of nexus %d has ended twice", r.order, r.nexus)
	}
	<-r.crowd.room[r.nexus]
}

// crowd is a unit that sees to it that no order is broken while it executes.
type crowd struct {
	t    *testing.T
	wg   sync.WaitGroup
	room []chan struct{}

	control lun.TaskControl

	mu      sync.Mutex
	running map[*lun.Command]*racer
	tasks   map[*lun.Command]*racer
}

func (c *crowd) TaskControl() *lun.TaskControl         { return &c.control }
func (c *crowd) Attention(*lun.Nexus) (int, lun.Sense) { return 0, lun.Sense{} }
func (c *crowd) Blocking() bool                        { return true }
func (c *crowd) DataLength([]byte) (out, in uint64)    { return 0, 0 }
func (c *crowd) Notify(*lun.Nexus, lun.Event)          {}
func (c *crowd) conflict(a, b *racer) bool {
	first := func(r *racer) bool { return r.Attr == lun.HeadOfQueue || r.Attr == lun.ACA }
	return !first(a) && !first(b) && (a.Attr == lun.Ordered || b.Attr == lun.Ordered)
}

func (c *crowd) Execute(k *lun.Command) {
	c.mu.Lock()
	r := c.tasks[k]
	for _, o := range c.running {
		if c.conflict(r, o) {
			c.t.Errorf("%v task %d of nexus %d runs beside %v task %d of nexus %d", r.Attr, r.order, r.nexus, o.Attr, o.order, o.nexus)
		}
	}
	for _, o := range c.tasks {
		if o.nexus == r.nexus && o.order < r.order && o.ends.Load() == 0 && c.running[&o.Command] == nil && c.conflict(r, o) && o != r {
			// It may have been aborted, or have ended a moment ago.
			c.mu.Unlock()
			c.settled(r, o)
			c.mu.Lock()
		}
	}
	c.running[k] = r
	c.mu.Unlock()
	select {
	case <-k.Cancel:
	case <-time.After(time.Duration(r.order%3) * 50 * time.Microsecond):
	}
	c.mu.Lock()
	delete(c.running, k)
	c.mu.Unlock()
	if k.CDB[1] == 1 {
		k.Fail(lun.Sense{Key: lun.MediumError})
	}
}

// settled requires that an older task that a younger one had to wait for ends
// without executing: it has left the task set already.
func (c *crowd) settled(r, o *racer) {
	for end := time.Now().Add(time.Minute); o.ends.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Errorf("task %d of nexus %d has overtaken %d", r.order, r.nexus, o.order)
			return
		}
	}
}

// TestCrowd has initiators send tasks of all kinds at once, and abort and reset;
// the unit watches the order, and each task ends just once.
func TestCrowd(t *testing.T) {
	const initiators, each, window = 5, 400, 12
	c := &crowd{t: t, running: map[*lun.Command]*racer{}, tasks: map[*lun.Command]*racer{}}
	d := target.New()
	lu, err := d.Add(0, c, target.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var nexuses []*target.Nexus
	for range initiators {
		nexuses = append(nexuses, d.Open(lun.Nexus{}, nil))
		c.room = append(c.room, make(chan struct{}, window))
	}
	var senders sync.WaitGroup
	for i, n := range nexuses {
		senders.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 7))
			// enter waits for room. What has it may be waiting for the nexus's ACA
			// condition to end, of others' too.
			enter := func() {
				for {
					select {
					case c.room[i] <- struct{}{}:
						return
					case <-time.After(time.Millisecond):
						a := n.ClearACA(lu)
						a.Wait()
					}
				}
			}
			for order := range int64(each) {
				k := &racer{crowd: c, nexus: i, order: order}
				k.Attr = attributes["SSSSSSSSOOHA"[r.IntN(12)]]
				k.CDB = slices.Clone(cdbs[[]string{"", "", "", "", "", "f", "fn"}[r.IntN(7)]])
				enter()
				c.mu.Lock()
				c.tasks[&k.Command] = k
				c.mu.Unlock()
				if got := n.Enter(&k.Task, k, lu, uint64(order)); got != target.Admitted {
					k.end()
				} else {
					k.run()
				}
				var a target.Aborting
				switch r.IntN(40) {
				case 0:
					a = n.AbortTaskSet(lu)
				case 1:
					a, _ = n.AbortTask(lu, uint64(order-int64(r.IntN(4))))
				case 2:
					a = n.ClearTaskSet(lu)
				case 3:
					a = n.LogicalUnitReset(lu)
				case 4:
					a = n.NexusReset()
				case 5:
					c.control.SetRules(lun.TaskRules{AbortedStatus: r.IntN(2) == 0, Restricted: r.IntN(2) == 0, OnError: lun.ErrorRule(r.IntN(2))})
				case 6, 7, 8, 9, 10, 11:
					a = n.ClearACA(lu)
				}
				a.Wait()
			}
			for range window {
				enter()
			}
			// The last may have left a condition that others wait for.
			a := n.ClearACA(lu)
			a.Wait()
		})
	}
	senders.Wait()
	c.wg.Wait()
	for _, k := range c.tasks {
		if n := k.ends.Load(); n != 1 {
			t.Errorf("task %d of nexus %d has ended %d times", k.order, k.nexus, n)
		}
	}
	if n := lu.InFlight(); n != 0 {
		t.Errorf("%d in flight at rest", n)
	}
	s := lu.Stats()
	var answered uint64
	for _, n := range s.Statuses {
		answered += n
	}
	if s.Latency.Count != answered || answered == 0 {
		t.Errorf("%d answered, %d latencies", answered, s.Latency.Count)
	}
	for _, n := range nexuses {
		n.Close()
	}
}
