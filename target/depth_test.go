package target_test

import (
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/target"
)

// deep is a task set that is kept at a depth: the task that leaves is the oldest
// that runs, and another comes.
type deep struct {
	nexuses []*target.Nexus
	lu      *target.LogicalUnit
	tasks   []*queued
	next    int
}

type queued struct {
	target.Task
	runs bool // Execute was called, and let it
}

func (q *queued) TaskAborted(*target.Task)  {}
func (q *queued) TaskDeferred(*target.Task) {}
func (q *queued) TaskReady(*target.Task)    {}

func newDeep(tb testing.TB, u lun.Unit, depth int) *deep {
	tb.Helper()
	t := target.New()
	lu, err := t.Add(0, u, target.Limits{})
	if err != nil {
		tb.Fatal(err)
	}
	d := &deep{lu: lu}
	for range 4 {
		d.nexuses = append(d.nexuses, t.Open(lun.Nexus{}, nil))
	}
	for range depth {
		d.tasks = append(d.tasks, &queued{})
	}
	return d
}

// put enters and executes the task of place i.
func (d *deep) put(tb testing.TB, i int, a lun.TaskAttribute) {
	q := d.tasks[i]
	q.Attr, q.CDB = a, cdbs[""]
	if got := d.nexuses[i%len(d.nexuses)].Enter(&q.Task, q, d.lu, uint64(i)); got != target.Admitted {
		tb.Fatalf("Enter: %v", got)
	}
	q.runs = q.Execute()
}

// turn has the oldest task leave and come again as the youngest.
func (d *deep) turn(tb testing.TB, a lun.TaskAttribute) {
	q := d.tasks[d.next]
	if !q.runs && !q.Execute() {
		tb.Fatalf("task %d doesn't run", d.next)
	}
	if !q.Leave() {
		tb.Fatalf("task %d isn't answered", d.next)
	}
	d.put(tb, d.next, a)
	d.next = (d.next + 1) % len(d.tasks)
}

// BenchmarkDepth compares what a task costs in a task set of 8,192 with one of 32,
// for what makes tasks wait.
func BenchmarkDepth(b *testing.B) {
	for _, k := range []struct {
		name  string
		rules lun.TaskRules
		attr  func(i int) lun.TaskAttribute
	}{
		{"SIMPLE", lun.TaskRules{}, func(int) lun.TaskAttribute { return lun.Simple }},
		{"an ORDERED one among them", lun.TaskRules{}, func(i int) lun.TaskAttribute {
			if i == 0 {
				return lun.Ordered
			}
			return lun.Simple
		}},
		{"ORDERED", lun.TaskRules{}, func(int) lun.TaskAttribute { return lun.Ordered }},
		{"ORDERED, a task set a nexus", lun.TaskRules{PerNexus: true}, func(int) lun.TaskAttribute { return lun.Ordered }},
		{"restricted", lun.TaskRules{Restricted: true}, func(int) lun.TaskAttribute { return lun.Simple }},
		{"restricted, a task set a nexus", lun.TaskRules{Restricted: true, PerNexus: true}, func(int) lun.TaskAttribute { return lun.Simple }},
	} {
		b.Run(k.name, func(b *testing.B) {
			var took [2]time.Duration
			for i, depth := range []int{32, 8192} {
				u := &ruled{}
				u.control.SetRules(k.rules)
				d := newDeep(b, u, depth)
				for i := range depth {
					d.put(b, i, k.attr(i))
				}
				start := time.Now()
				for range b.N {
					d.turn(b, k.attr(d.next))
				}
				took[i] = time.Since(start)
			}
			b.ReportMetric(float64(took[1])/float64(b.N), "ns/task")
			b.ReportMetric(float64(took[1])/float64(took[0]), "deep/shallow")
		})
	}
}
