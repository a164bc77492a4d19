package queue_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"testing/quick"

	"lunlab/queue"
)

func rules(t *testing.T, name string) queue.Rules {
	t.Helper()
	r, err := queue.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// host builds limits as one writes them for tcm_loop: queues/can_queue/cmd_per_lun.
func host(queues, canQueue, cmdPerLUN int, edits ...func(*queue.Limits)) queue.Limits {
	l := queue.Limits{CanQueue: canQueue, CmdPerLUN: cmdPerLUN, HWQueues: queues}
	for _, e := range edits {
		e(&l)
	}
	return l
}

func tagset(l *queue.Limits)  { l.HostTagset = true }
func token(l *queue.Limits)   { l.NeedsBudgetToken = true }
func configs(l *queue.Limits) { l.Configures = true }
func ncq(l *queue.Limits)     { l.Configures, l.ConfiguredDepth = true, 32 }
func oneCPU(l *queue.Limits)  { l.CPUs = 1 }
func clamps(l *queue.Limits)  { l.ClampsDepth = true }

// TestAllocated holds every rule set against hosts that were tried on kernels
// with these rules, and against the predicates as posted.
func TestAllocated(t *testing.T) {
	const e, a = false, true // elided, allocated
	names := []string{"6.12", "v1", "6.19", "v2", "v3", "v3-scsi", "v4"}
	for _, c := range []struct {
		name string
		l    queue.Limits
		want [7]bool
	}{
		{"1/64/64", host(1, 64, 64), [7]bool{a, a, a, e, e, e, e}},
		{"1/64/32", host(1, 64, 32), [7]bool{a, a, a, a, a, a, a}},
		{"1/64/128", host(1, 64, 128), [7]bool{a, a, a, e, e, e, e}},
		{"1/64/63", host(1, 64, 63), [7]bool{a, a, a, a, a, a, a}},
		{"1/1/1", host(1, 1, 1), [7]bool{a, a, a, e, e, e, e}},
		{"1/1/0", host(1, 1, 0), [7]bool{a, a, a, e, e, e, e}},
		{"1/8192/8192", host(1, 8192, 8192), [7]bool{a, a, a, e, e, e, e}},
		// With a second look at queue_depth, which is held to 4,096.
		{"1/8192/8192 configured", host(1, 8192, 8192, configs), [7]bool{a, a, a, a, a, a, a}},
		{"2/64/64", host(2, 64, 64), [7]bool{a, a, a, a, a, a, a}},
		{"2/64/64 on one CPU", host(2, 64, 64, oneCPU), [7]bool{a, a, a, e, e, e, e}},
		{"2/64/64 host-wide", host(2, 64, 64, tagset), [7]bool{a, e, a, e, e, e, e}},
		{"2/64/32 host-wide", host(2, 64, 32, tagset), [7]bool{a, a, a, a, a, a, a}},
		{"1/64/64 token", host(1, 64, 64, token), [7]bool{a, a, a, e, e, e, a}},
		{"2/64/64 host-wide token", host(2, 64, 64, tagset, token), [7]bool{a, e, a, e, e, e, a}},
		{"AHCI", host(1, 32, 1, ncq), [7]bool{a, a, a, e, e, e, e}},
		{"AHCI token", host(1, 32, 1, ncq, token), [7]bool{a, a, a, e, e, e, a}},
		{"PATA", host(1, 1, 1, configs), [7]bool{a, a, a, a, e, e, e}},
	} {
		for i, n := range names {
			p, err := rules(t, n).Predict(c.l, 0)
			if err != nil {
				t.Fatal(err)
			}
			if p.Allocated != c.want[i] {
				t.Errorf("%s under %s: got allocated %v (%s), want %v", c.name, n, p.Allocated, p.Reason, c.want[i])
			}
			verb := map[bool]string{true: "allocated: ", false: "elided: "}[p.Allocated]
			if !strings.HasPrefix(p.Reason, verb) {
				t.Errorf("%s under %s: reason %q doesn't begin with %q", c.name, n, p.Reason, verb)
			}
		}
	}
}

func TestPredict(t *testing.T) {
	for _, c := range []struct {
		rules   string
		name    string
		l       queue.Limits
		lowerTo int
		want    string
	}{
		{"6.12", "equal", host(1, 64, 64), 8,
			"allocated depth=64 map=64/4 max=64 token=0..63 map weight; 8: ok reads 8 held max 8"},
		{"6.12", "two queues", host(2, 64, 64), 8,
			"allocated depth=64 map=64/4 max=64 token=0..63 map weight; 8: ok reads 8 held max 8"},
		{"6.12", "two queues, one tag each", host(2, 1, 1), 1,
			"allocated depth=1 map=1/6 max=1 token=0..0 map weight; 1: ok reads 1 held max 1"},
		{"6.12", "cmd_per_lun above can_queue", host(1, 64, 128), 65,
			"allocated depth=64 map=64/4 max=64 token=0..63 map weight; 65: EINVAL reads 64 held max 64"},
		{"6.12", "large", host(1, 8192, 8192), 5000,
			"allocated depth=4096 map=4096/6 max=4096 token=0..4095 map weight; 5000: ok reads 4096 held max 4096"},
		{"6.12", "virtio", host(1, 64, 16, clamps), 32,
			"allocated depth=16 map=16/2 max=16 token=0..15 map weight; 32: ok reads 16 held max 16"},
		{"v3", "equal", host(1, 64, 64), 8,
			"elided depth=64 map=0/0 max=64 token=2147483647..2147483647 tag walk; 8: ok reads 8 NOT held max 64"},
		{"v3", "same depth", host(1, 64, 64), 64,
			"elided depth=64 map=0/0 max=64 token=2147483647..2147483647 tag walk; 64: ok reads 64 held max 64"},
		{"v3", "host-wide on four queues", host(4, 64, 64, tagset), 8,
			"elided depth=64 map=0/0 max=64 token=2147483647..2147483647 tag walk; 8: ok reads 8 NOT held max 64"},
		{"v3", "two queues", host(2, 64, 64), 8,
			"allocated depth=64 map=64/4 max=64 token=0..63 map weight; 8: ok reads 8 held max 8"},
		{"v3", "large", host(1, 8192, 8192), 4096,
			"elided depth=4096 map=0/0 max=8192 token=2147483647..2147483647 tag walk; 4096: ok reads 4096 NOT held max 8192"},
		{"v3", "past the block layer's tags", host(1, 20000, 20000), 0,
			"elided depth=4096 map=0/0 max=10240 token=2147483647..2147483647 tag walk"},
		{"v3", "one tag", host(1, 1, 1), 1,
			"elided depth=1 map=0/0 max=1 token=2147483647..2147483647 tag walk; 1: ok reads 1 held max 1"},
		{"v3", "AHCI", host(1, 32, 1, ncq), 4,
			"elided depth=32 map=0/0 max=32 token=2147483647..2147483647 tag walk hint freed twice; 4: ok reads 4 NOT held max 32"},
		{"v4", "AHCI", host(1, 32, 1, ncq, token), 4,
			"allocated depth=32 map=32/3 max=32 token=0..31 map weight; 4: ok reads 4 held max 4"},
		{"v2", "equal", host(1, 64, 64), 8,
			"elided depth=0 map=0/0 max=64 token=2147483647..2147483647 tag walk; 8: EINVAL reads 0 NOT held max 64"},
		{"v2", "AHCI", host(1, 32, 1, ncq), 4,
			"elided depth=32 map=0/0 max=32 token=2147483647..2147483647 tag walk hint freed twice; 4: EINVAL reads 32 held max 32"},
		{"v2", "PATA", host(1, 1, 1, configs), 1,
			"allocated depth=0 map=0/6 max=0 token=0..0 map weight STUCK"},
		{"v1", "host-wide", host(2, 64, 64, tagset), 8,
			"elided depth=64 map=0/0 max=64 token=2147483647..2147483647 tag walk; 8: ok reads 8 NOT held max 64"},
		{"v1", "host-wide, large", host(1, 8192, 8192, tagset), 8,
			"elided depth=4096 map=0/0 max=8192 token=2147483647..2147483647 tag walk; 8: ok reads 8 NOT held max 8192 OOPS"},
		{"v1", "raised to can_queue", host(1, 64, 32, tagset), 64,
			"allocated depth=32 map=32/3 max=32 token=0..31 map weight; 64: ok reads 64 held max 64"},
		{"6.19", "equal", host(1, 64, 64), 8,
			"allocated depth=64 map=64/4 max=64 token=0..63 map weight; 8: ok reads 8 held max 8"},
	} {
		t.Run(c.rules+" "+c.name, func(t *testing.T) {
			p, err := rules(t, c.rules).Predict(c.l, c.lowerTo)
			if err != nil {
				t.Fatal(err)
			}
			if got := brief(p); got != c.want {
				t.Errorf("got  %s\nwant %s\nbecause %s", got, c.want, p.Reason)
			}
		})
	}
}

func brief(p queue.Prediction) string {
	word := func(b bool, yes, no string) string {
		if b {
			return yes
		}
		return no
	}
	s := fmt.Sprintf("%s depth=%d map=%d/%d max=%d token=%d..%d %s%s%s", word(p.Allocated, "allocated", "elided"),
		p.QueueDepth, p.MapDepth, p.MapShift, p.MaxInFlight, p.MinToken, p.MaxToken, p.DeviceBusy,
		word(p.Stuck, " STUCK", ""), word(p.HintFreedTwice, " hint freed twice", ""))
	if w := p.Lowered; w != nil {
		s += fmt.Sprintf("; %d: %s reads %d %s max %d%s", w.Requested, word(w.Accepted, "ok", w.Error), w.QueueDepth,
			word(w.Held, "held", "NOT held"), w.MaxInFlight, word(w.Oops, " OOPS", ""))
	}
	return s
}

func TestReasons(t *testing.T) {
	for _, c := range []struct {
		rules string
		l     queue.Limits
		want  string
	}{
		{"v3", host(1, 64, 64), "elided: one hardware queue and depth 64 >= can_queue 64"},
		{"v3", host(2, 64, 64, tagset), "elided: host-wide tags and depth 64 >= can_queue 64"},
		{"v3", host(1, 64, 32), "allocated: depth 32 < can_queue 64"},
		{"v3", host(4, 64, 64), "allocated: 4 hardware queues whose tags are not host-wide"},
		{"v3", host(4, 64, 64, oneCPU), "elided: one hardware queue (of 4 asked for, on 1 CPU) and depth 64 >= can_queue 64"},
		{"v3", host(1, 32, 1, ncq), "elided: one hardware queue and depth 32 >= can_queue 32; at first allocated: depth 1 < can_queue 32"},
		{"v3", host(1, 8192, 8192, configs), "allocated: depth 4096 < can_queue 8192; at first elided: one hardware queue and depth 8192 >= can_queue 8192"},
		{"v4", host(1, 32, 32, token), "allocated: the host needs the budget token"},
		{"v1", host(1, 64, 64), "allocated: the tags are not host-wide"},
		{"6.12", host(1, 64, 64), "allocated: this kernel always allocates"},
	} {
		p, err := rules(t, c.rules).Predict(c.l, 0)
		if err != nil {
			t.Fatal(err)
		}
		if p.Reason != c.want {
			t.Errorf("%s: got %q, want %q", c.rules, p.Reason, c.want)
		}
	}
}

func TestV1SecondLoweringOopses(t *testing.T) {
	d, err := rules(t, "v1").Attach(host(2, 64, 64, tagset))
	if err != nil {
		t.Fatal(err)
	}
	if w := d.WriteDepth(8); w.Oops {
		t.Errorf("first write: %+v, want no oops", w)
	}
	if w := d.WriteDepth(4); !w.Oops {
		t.Errorf("second write: %+v, want an oops", w)
	}
}

// limits that are valid, with the interesting borders often hit.
type limits struct{ queue.Limits }

func (limits) Generate(r *rand.Rand, _ int) reflect.Value {
	pick := func(n ...int) int { return n[r.Intn(len(n))] }
	l := queue.Limits{
		CanQueue:         pick(1, 2, 31, 32, 64, 4095, 4096, 4097, 10240, 10241, 1+r.Intn(20000)),
		HWQueues:         pick(1, 1, 2, 4, 1+r.Intn(64)),
		CPUs:             pick(0, 0, 1, 2, 8),
		HostTagset:       r.Intn(2) == 0,
		NeedsBudgetToken: r.Intn(4) == 0,
		Configures:       r.Intn(2) == 0,
		ClampsDepth:      r.Intn(4) == 0,
	}
	l.CmdPerLUN = min(pick(0, 1, l.CanQueue-1, l.CanQueue, l.CanQueue+1, 1+r.Intn(l.CanQueue)), queue.MaxCmdPerLUN)
	if l.Configures && r.Intn(2) == 0 {
		l.ConfiguredDepth = pick(1, 32, l.CanQueue, l.CanQueue+1)
	}
	return reflect.ValueOf(limits{l})
}

func each(t *testing.T, f func(r queue.Rules, l queue.Limits, p queue.Prediction) error) {
	t.Helper()
	err := quick.Check(func(l limits) bool {
		for _, r := range queue.All() {
			p, err := r.Predict(l.Limits, 0)
			if err == nil {
				err = f(r, l.Limits, p)
			}
			if err != nil {
				t.Errorf("%s, %+v: %v", r.Name, l.Limits, err)
				return false
			}
		}
		return true
	}, &quick.Config{MaxCount: 1000})
	if err != nil {
		t.Error(err)
	}
}

// A map may be left out only where it could not have limited anything: that is
// what the series claims, up to the cut of the depth at 4,096.
func TestElisionIsSafeAtFirst(t *testing.T) {
	each(t, func(r queue.Rules, l queue.Limits, p queue.Prediction) error {
		if p.Allocated || l.CanQueue > queue.MaxDepth || r.DepthNeedsMap {
			return nil
		}
		if p.MaxInFlight > p.QueueDepth {
			return fmt.Errorf("elided with %d in flight at depth %d", p.MaxInFlight, p.QueueDepth)
		}
		return nil
	})
}

func TestBounds(t *testing.T) {
	each(t, func(r queue.Rules, l queue.Limits, p queue.Prediction) error {
		switch {
		case p.QueueDepth > l.DeviceMax():
			return fmt.Errorf("queue depth %d above %d", p.QueueDepth, l.DeviceMax())
		case p.MaxInFlight > l.HostMax():
			return fmt.Errorf("%d in flight above the host's %d", p.MaxInFlight, l.HostMax())
		case p.Allocated && !p.Stuck && (p.MapDepth != p.QueueDepth || p.MaxToken != p.MapDepth-1):
			return fmt.Errorf("map depth %d, tokens to %d, at queue depth %d", p.MapDepth, p.MaxToken, p.QueueDepth)
		case p.Allocated && p.MapDepth >= 4 && 4<<p.MapShift > p.MapDepth && p.MapShift > 0 && !p.Stuck:
			return fmt.Errorf("map of %d in fewer than 4 words of 2^%d", p.MapDepth, p.MapShift)
		case !p.Allocated && (p.MinToken != queue.NoToken || p.DeviceBusy != queue.BusyTagWalk):
			return fmt.Errorf("elided, yet tokens from %d and device_busy by %s", p.MinToken, p.DeviceBusy)
		case p.Stuck && r.Name != "v2":
			return fmt.Errorf("stuck")
		}
		return nil
	})
}

// Each rule set leaves out no more than its successor's condition allows, and
// a host that wants the token keeps its maps under v4.
func TestElisionOrder(t *testing.T) {
	v3, v4 := rules(t, "v3"), rules(t, "v4")
	each(t, func(r queue.Rules, l queue.Limits, p queue.Prediction) error {
		wide, _ := v3.NeedsMap(l, l.HostCmdPerLUN())
		if needs, _ := r.NeedsMap(l, l.HostCmdPerLUN()); !needs && wide {
			return fmt.Errorf("elided where v3 allocates")
		}
		if needs, _ := v4.NeedsMap(l, l.HostCmdPerLUN()); l.NeedsBudgetToken && !needs {
			return fmt.Errorf("v4 elides for a host that needs the token")
		}
		l.NeedsBudgetToken = false
		if got, _ := v4.NeedsMap(l, l.HostCmdPerLUN()); got != wide {
			return fmt.Errorf("v4 without the flag: needs %v, v3 %v", got, wide)
		}
		return nil
	})
}

func TestHeldMeansHeld(t *testing.T) {
	each(t, func(r queue.Rules, l queue.Limits, _ queue.Prediction) error {
		d, err := r.Attach(l)
		if err != nil || d.Stuck() {
			return err
		}
		for _, n := range []int{0, 1, 8, l.CanQueue, l.CanQueue + 1} {
			before := d.QueueDepth()
			w := d.WriteDepth(n)
			switch {
			case w.Held != (w.MaxInFlight <= w.QueueDepth):
				return fmt.Errorf("write %d: %+v", n, w)
			case !w.Accepted && (w.Error != "EINVAL" || w.QueueDepth != before):
				return fmt.Errorf("refused write %d: %+v, depth was %d", n, w, before)
			case w.Accepted && (n < 1 || n > l.CanQueue):
				return fmt.Errorf("accepted %d with can_queue %d", n, l.CanQueue)
			case w.Accepted && d.Mapped() && !w.Held:
				return fmt.Errorf("write %d not held by a map: %+v", n, w)
			}
		}
		return nil
	})
}

func TestLookup(t *testing.T) {
	seen := map[string]string{}
	for _, r := range queue.All() {
		for _, n := range append([]string{r.Name}, r.Aliases...) {
			if was, dup := seen[n]; dup {
				t.Errorf("%q names %s and %s", n, was, r.Name)
			}
			seen[n] = r.Name
			if got, err := queue.Lookup(strings.ToUpper(n)); err != nil || got.Name != r.Name {
				t.Errorf("Lookup(%q): got %q, %v, want %q", n, got.Name, err, r.Name)
			}
		}
	}
	var back []queue.Rules
	if raw, err := json.Marshal(queue.All()); err != nil || json.Unmarshal(raw, &back) != nil || !reflect.DeepEqual(back, queue.All()) {
		t.Errorf("through JSON: %s, %v, %v", raw, err, back)
	}
	if err := json.Unmarshal([]byte(`["v9"]`), &back); err == nil {
		t.Error("v9 is taken from JSON")
	}
	if _, err := queue.Lookup("v9"); err == nil || !strings.Contains(err.Error(), "v3-scsi") {
		t.Errorf("Lookup(v9): got %v, want the names in the error", err)
	}
}

func TestAgree(t *testing.T) {
	pair := []queue.Rules{rules(t, "v2"), rules(t, "v3")}
	for _, c := range []struct {
		l    queue.Limits
		want bool
	}{
		{host(1, 64, 32), true},
		{host(2, 64, 64), true},
		{host(1, 64, 64), false}, // v2 keeps depth 0
	} {
		if got, err := queue.Agree(pair, c.l, 8); err != nil || got != c.want {
			t.Errorf("Agree(v2, v3) on %+v: got %v, %v, want %v", c.l, got, err, c.want)
		}
	}
	if _, err := queue.Agree(pair, queue.Limits{}, 0); err == nil {
		t.Error("Agree on no limits: no error")
	}
}
