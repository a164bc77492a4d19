package queue_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"lunlab/queue"
)

func TestFairTags(t *testing.T) {
	for _, c := range []struct{ tags, active, want int }{
		{64, 0, 64}, {64, 1, 64}, {64, 2, 32}, {64, 3, 22}, {64, 16, 4}, {64, 64, 4}, {1, 8, 1}, {2, 8, 4},
	} {
		if got := queue.FairTags(c.tags, c.active); got != c.want {
			t.Errorf("%d tags, %d active: %d, want %d", c.tags, c.active, got, c.want)
		}
	}
}

func TestWakeBatch(t *testing.T) {
	for _, c := range []struct{ tags, active, want int }{
		{1, 1, 1}, {32, 1, 4}, {32, 8, 1}, {1024, 1, 8}, {1024, 16, 8}, {1024, 64, 2},
	} {
		if got := queue.WakeBatch(c.tags, c.active); got != c.want {
			t.Errorf("%d tags, %d active: %d, want %d", c.tags, c.active, got, c.want)
		}
	}
}

func TestIdleGrace(t *testing.T) {
	for _, c := range []struct{ timeout, want time.Duration }{
		{30 * time.Second, 6 * time.Second}, {2 * time.Second, 3 * time.Second},
	} {
		if got := queue.IdleGrace(c.timeout); got != c.want {
			t.Errorf("time-out %v: %v, want %v", c.timeout, got, c.want)
		}
	}
}

// A per-CPU counter is exact when summed at rest, lies between what was and what
// is when summed meanwhile, and is off by no more than its bound when read.
func TestPerCPUCounter(t *testing.T) {
	for _, cpus := range []int{1, 2, 17, 64} {
		rng := rand.New(rand.NewPCG(uint64(cpus), 0))
		c := queue.NewPerCPUCounter(cpus)
		var total, behind int64
		add := func() {
			c.Add(rng.IntN(cpus), 1)
			total++
			behind = max(behind, total-c.Read())
		}
		for range 100 {
			for range rng.IntN(200) {
				add()
			}
			if got := c.Sum(nil); got != total {
				t.Fatalf("%d CPUs: sum %d at rest, want %d", cpus, got, total)
			}
			before := total
			sum := c.Sum(func() {
				if rng.IntN(2) == 0 {
					total++
					c.Add(rng.IntN(cpus), 1)
				}
			})
			if sum < before || sum > total {
				t.Fatalf("%d CPUs: sum %d while it rises from %d to %d", cpus, sum, before, total)
			}
		}
		if most := int64(queue.PerCPUError(cpus)); behind > most {
			t.Errorf("%d CPUs: read is %d behind, want %d at most", cpus, behind, most)
		}
	}
	// It can be that far behind, and a step more folds it.
	c := queue.NewPerCPUCounter(2)
	for cpu := range 2 {
		for range queue.PerCPUBatch(2) - 1 {
			c.Add(cpu, 1)
		}
	}
	if got := c.Sum(nil) - c.Read(); got != int64(queue.PerCPUError(2)) {
		t.Errorf("behind by %d, want %d", got, queue.PerCPUError(2))
	}
	if !c.Add(0, 1) || c.Read() != int64(queue.PerCPUBatch(2)) {
		t.Errorf("at the batch, read %d, want %d", c.Read(), queue.PerCPUBatch(2))
	}
}
