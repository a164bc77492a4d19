package fault_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lunlab/lun"
	"lunlab/lun/fault"
)

// took executes a command and returns how long that took.
func took(u lun.Unit, c *lun.Command) time.Duration {
	start := time.Now()
	u.Execute(c)
	return time.Since(start)
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t, "cmd=read delay=5ms", "cmd=read delay=2s status=busy")
		if c, _ := abortable(u, write10(0, 1)); took(u, c) != 0 {
			t.Error("a write waited")
		}
		c, _ := abortable(u, read10(0, 1))
		if d := took(u, c); d != 2005*time.Millisecond || c.Status != lun.Busy {
			t.Errorf("%v, status %#x; want 2.005s and BUSY", d, c.Status)
		}
		// A command that is aborted waits no longer, and isn't executed.
		c, abort := abortable(u, read10(0, 1))
		time.AfterFunc(3*time.Millisecond, abort)
		if d := took(u, c); d != 3*time.Millisecond || c.Status != lun.TaskAborted || c.InLen != 0 {
			t.Errorf("aborted: %v, %s", d, show(c))
		}
		if r := u.Rules(); r[0].Fired != 2 || r[1].Fired != 1 || r[0].Held != 0 {
			t.Errorf("rules: %+v", r)
		}
	})
}

// TestDistributions draws many delays, and compares quantiles with what they have to
// be. With the same seed, they are the same again.
func TestDistributions(t *testing.T) {
	const n = 4000
	ms := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	for _, tt := range []struct {
		delay         string
		p10, p50, p99 time.Duration
	}{
		{"7ms", ms(7), ms(7), ms(7)},
		{"uniform:10ms,20ms", ms(11), ms(15), ms(19.9)},
		{"normal:100ms,10ms", ms(87.2), ms(100), ms(123.3)},
		{"lognormal:10ms,1", ms(10 * math.Exp(-1.2816)), ms(10), ms(10 * math.Exp(2.3263))},
		{"exponential:10ms", ms(1.0536), ms(6.9315), ms(46.05)},
		{"percentiles:20=10ms,50=20ms,100=120ms", ms(10), ms(20), ms(118)},
	} {
		draw := func(seed int) (all []time.Duration) {
			synctest.Test(t, func(t *testing.T) {
				u := newUnit(t, fmt.Sprintf("delay=%s seed=%d", tt.delay, seed))
				for range n {
					c, _ := abortable(u, make([]byte, 6))
					all = append(all, took(u, c))
				}
			})
			return all
		}
		all := draw(1)
		if !slices.Equal(all, draw(1)) {
			t.Errorf("%s: the same seed gives other delays", tt.delay)
		}
		if tt.delay != "7ms" && slices.Equal(all, draw(2)) {
			t.Errorf("%s: another seed gives the same delays", tt.delay)
		}
		slices.Sort(all)
		for _, q := range []struct {
			share float64
			want  time.Duration
		}{{0.1, tt.p10}, {0.5, tt.p50}, {0.99, tt.p99}} {
			// Far more than what chance does to so many.
			if got := all[int(q.share*n)]; math.Abs(float64(got-q.want)) > 0.2*float64(q.want) {
				t.Errorf("%s: quantile %v is %v, want %v", tt.delay, q.share, got, q.want)
			}
		}
	}
}

func TestProbability(t *testing.T) {
	run := func(rule string) (hits string) {
		u := newUnit(t, rule)
		for range 2000 {
			if do(u, make([]byte, 6)).Status == lun.Busy {
				hits += "x"
			} else {
				hits += "."
			}
		}
		return hits
	}
	hits := run("status=busy probability=10% seed=5")
	n := 0
	for _, c := range hits {
		if c == 'x' {
			n++
		}
	}
	if n < 120 || n > 280 {
		t.Errorf("%d of 2000 hits, want about 200", n)
	}
	if hits != run("probability=0.1 status=busy seed=5") {
		t.Error("the same seed gives other hits")
	}
	if hits == run("probability=0.1 status=busy seed=6") {
		t.Error("another seed gives the same hits")
	}
}

func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t, "status=busy after=10s for=5s")
		for second := range 20 {
			want := lun.Good
			if second >= 10 && second < 15 {
				want = lun.Busy
			}
			if c := do(u, make([]byte, 6)); c.Status != want {
				t.Errorf("after %d s: status %#x, want %#x", second, c.Status, want)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestNever holds many commands for good. Each takes a goroutine, and is gone when
// it is aborted.
func TestNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t, "cmd=write10 never", "cmd=write16 never execute")
		before := runtime.NumGoroutine()
		var held sync.WaitGroup
		var aborts []func()
		for range 1000 {
			c, abort := abortable(u, write10(3, 1))
			aborts = append(aborts, abort)
			held.Go(func() {
				if u.Execute(c); c.Status != lun.TaskAborted {
					t.Errorf("status %#x", c.Status)
				}
			})
		}
		time.Sleep(24 * time.Hour)
		if r := u.Rules()[0]; r.Held != 1000 {
			t.Errorf("%+v", r)
		}
		if n := runtime.NumGoroutine(); n > before+1001 {
			t.Errorf("%d goroutines for 1000 commands", n-before)
		}
		// Others go on, and what was lost stays so when the rule is gone.
		if do(u, read10(3, 1)).Status != lun.Good {
			t.Error("a read fails")
		}
		if _, err := u.Remove(1); err != nil {
			t.Fatal(err)
		}
		for _, abort := range aborts {
			abort()
		}
		held.Wait()
		if c := do(u, read10(3, 1)); blocks(c.DataIn)[0] != 3 {
			t.Error("what was never answered was written")
		}
		c, abort := abortable(u, []byte{0x8a, 9: 3, 13: 1, 15: 0})
		time.AfterFunc(time.Second, abort)
		u.Execute(c)
		if c := do(u, read10(3, 1)); blocks(c.DataIn)[0] != 0xee {
			t.Error("what was executed and never answered wasn't written")
		}
	})
}

func TestAnswerAfterAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t, "answer-after-abort count=1")
		c, abort := abortable(u, write10(3, 1))
		time.AfterFunc(time.Hour, abort)
		if d := took(u, c); d != time.Hour || c.Status != lun.Good || !c.AnswerAborted || c.OutLen != blockSize {
			t.Errorf("%v, %s, to be answered: %v", d, show(c), c.AnswerAborted)
		}
		if c := do(u, read10(3, 1)); c.AnswerAborted || blocks(c.DataIn)[0] != 0xee {
			t.Errorf("afterwards %s, to be answered although aborted: %v", show(c), c.AnswerAborted)
		}
	})
}

func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t)
		id := add(t, u, "cmd=write nth=2 stall")
		if do(u, write10(0, 1)).Status != lun.Good {
			t.Error("the first write fails")
		}
		var held sync.WaitGroup
		var ended []time.Duration
		var mu sync.Mutex
		start := time.Now()
		for i, cdb := range [][]byte{write10(0, 1), read10(0, 1), {0x12, 4: 36, 5: 0}} {
			c, abort := abortable(u, cdb)
			time.Sleep(time.Second) // one after the other
			if i == 2 {
				time.AfterFunc(time.Minute, abort)
			}
			held.Go(func() {
				u.Execute(c)
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, time.Since(start))
				if want := map[bool]lun.Status{true: lun.TaskAborted}[i == 2]; c.Status != want {
					t.Errorf("command %d: status %#x, want %#x", i, c.Status, want)
				}
			})
		}
		time.Sleep(time.Hour)
		if r := u.Rules()[0]; r.Held != 2 || r.Fired != 1 {
			t.Errorf("%+v", r)
		}
		if n, err := u.Remove(id); n != 1 || err != nil {
			t.Errorf("removed %d: %v", n, err)
		}
		held.Wait()
		want := []time.Duration{time.Minute + 3*time.Second, time.Hour + 3*time.Second, time.Hour + 3*time.Second}
		if !slices.Equal(ended, want) {
			t.Errorf("ended after %v, want %v", ended, want)
		}

		// One with an end lets all go on by itself.
		add(t, u, "stall for=10s")
		c, _ := abortable(u, read10(0, 1))
		if d := took(u, c); d != 10*time.Second || c.Status != lun.Good {
			t.Errorf("%v, status %#x", d, c.Status)
		}
	})
}

// TestAbove sends many commands at once: so many get through, and the others find a
// full task set.
func TestAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnit(t, "above=8 status=task-set-full", "delay=1s")
		if !u.Blocking() {
			t.Error("commands aren't run beside each other")
		}
		var mu sync.Mutex
		counts := map[lun.Status]int{}
		var all sync.WaitGroup
		for range 32 {
			c, _ := abortable(u, read10(0, 1))
			all.Go(func() {
				u.Execute(c)
				mu.Lock()
				defer mu.Unlock()
				counts[c.Status]++
			})
		}
		all.Wait()
		// One that is refused counts until it is answered.
		if counts[lun.Good] > 8 || counts[lun.Good] == 0 || counts[lun.TaskSetFull] != 32-counts[lun.Good] {
			t.Errorf("%v", counts)
		}
		if c, _ := abortable(u, read10(0, 1)); took(u, c) != time.Second || c.Status != lun.Good {
			t.Errorf("one by itself: %s", show(c))
		}
	})
}

// TestWithoutCancel shows that no rule holds up a command that the transport can't
// wait for, though it came to be in force meanwhile.
func TestWithoutCancel(t *testing.T) {
	for _, rule := range []string{"never", "answer-after-abort", "stall", "delay=24h", "above=1 status=busy"} {
		u := newUnit(t, rule)
		c := &lun.Command{Nexus: nexusA, CDB: make([]byte, 6)}
		if u.Execute(c); c.Status != lun.Good || u.Rules()[0].Matched != 0 {
			t.Errorf("%s: status %#x, %+v", rule, c.Status, u.Rules()[0])
		}
	}
}

func TestRules(t *testing.T) {
	u := newUnit(t)
	if u.Blocking() {
		t.Error("a disk in memory is blocking")
	}
	first, second := add(t, u, "status=busy"), add(t, u, "delay=1s")
	if first == second || !u.Blocking() {
		t.Errorf("numbers %d and %d, blocking: %v", first, second, u.Blocking())
	}
	if n, err := u.Remove(first, 99); n != 0 || err == nil {
		t.Errorf("removed %d, %v; want an error", n, err)
	}
	if n, err := u.Remove(second); n != 1 || err != nil || u.Blocking() {
		t.Errorf("removed %d, %v, blocking: %v", n, err, u.Blocking())
	}
	if r := u.Rules(); len(r) != 1 || r[0].ID != first || r[0].Rule != "status=busy" {
		t.Errorf("%+v", r)
	}
	if n, err := u.Remove(); n != 1 || err != nil || len(u.Rules()) != 0 {
		t.Errorf("removed %d, %v", n, err)
	}
	if n, err := u.Remove(); n != 0 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	for range fault.MaxRules {
		add(t, u, "status=busy nth=1000")
	}
	if r, _ := fault.Parse("status=busy"); r == nil {
		t.Fatal("no rule")
	} else if _, err := u.Add(r); err != fault.ErrTooMany {
		t.Errorf("one too many: %v", err)
	}
}
