//go:build !race

package sim_test

import (
	"math/rand"
	"reflect"
	"testing"
	"testing/quick"

	"lunlab/queue"
	"lunlab/queue/sim"
)

// observe runs the model as Predict speaks of it: the device is scanned, given
// more commands than its host can take, lowered and raised again, and given as
// many each time.
func observe(t *testing.T, r queue.Rules, l queue.Limits, lowerTo int) queue.Prediction {
	t.Helper()
	cpus := max(l.Queues(), 2)
	burst := sim.Plan{
		{Kind: sim.OpHold},
		{Kind: sim.OpSubmit, CPU: sim.AllCPUs, N: l.HostMax()/cpus + 2},
		{Kind: sim.OpSettle},
	}
	c := sim.Case{Rules: r, Host: sim.Host{Name: "test", Limits: l}}
	c.Plan = append(sim.Plan{{Kind: sim.OpScan}, {Kind: sim.OpSettle}}, burst...)
	run := func() (sim.Result, sim.DeviceStats) {
		res, err := c.Run(false)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Devices) != 1 {
			return res, sim.DeviceStats{}
		}
		return res, res.Devices[0]
	}
	res, d := run()
	broken := func(res sim.Result, i sim.Invariant) bool {
		for _, v := range res.Violations {
			if v.Invariant == i {
				return true
			}
		}
		return false
	}
	p := queue.Prediction{
		Rules: r.Name, Limits: l, HWQueues: l.Queues(), CmdPerLUN: l.HostCmdPerLUN(),
		Stuck: broken(res, sim.NoStall), HintFreedTwice: broken(res, sim.FreedOnce),
	}
	if len(res.Devices) == 0 { // it ended in the scan
		return p
	}
	p.Allocated, p.MapDepth, p.MapShift, p.QueueDepth, p.MaxInFlight = d.Mapped, d.MapDepth, d.MapShift, d.QueueDepth, d.Peak
	p.MinToken, p.MaxToken, p.DeviceBusy = queue.NoToken, queue.NoToken, queue.BusyTagWalk
	if p.Allocated {
		p.MinToken, p.MaxToken, p.DeviceBusy = d.MinToken, d.MaxToken, queue.BusyMapWeight
	}
	write := func(depth int) *queue.DepthWrite {
		c.Plan = append(append(c.Plan, sim.Op{Kind: sim.OpDepth, N: depth}, sim.Op{Kind: sim.OpSettle}), burst...)
		res, d := run()
		w := queue.DepthWrite{Requested: depth, Accepted: d.Wrote, QueueDepth: d.QueueDepth, MaxInFlight: d.PeakAtDepth, Oops: broken(res, sim.UseAfterFree)}
		w.Held = w.MaxInFlight <= w.QueueDepth
		if !w.Accepted {
			w.Error = "EINVAL"
		}
		return &w
	}
	if lowerTo != 0 {
		p.Lowered = write(lowerTo)
		p.Raised = write(p.QueueDepth)
	}
	return p
}

// plain leaves out what only words say.
func plain(p queue.Prediction) queue.Prediction {
	p.Reason = ""
	if p.Stuck {
		return queue.Prediction{Rules: p.Rules, Limits: p.Limits, HWQueues: p.HWQueues, CmdPerLUN: p.CmdPerLUN, Stuck: true}
	}
	if p.Allocated {
		// A device takes its tokens by hints: that the first and the last are
		// among them is not for sure where the host holds it to less.
		if p.MaxInFlight < p.MapDepth {
			p.MinToken, p.MaxToken = 0, p.MapDepth-1
		}
	}
	for _, w := range []**queue.DepthWrite{&p.Lowered, &p.Raised} {
		if *w != nil {
			c := **w
			c.Reason = ""
			*w = &c
		}
	}
	return p
}

func same(t *testing.T, r queue.Rules, l queue.Limits, lowerTo int) bool {
	t.Helper()
	want, err := r.Predict(l, lowerTo)
	if err != nil {
		t.Fatal(err)
	}
	if want.Lowered != nil && (want.Lowered.Oops || want.Raised.Oops) {
		lowerTo = 0 // the kernel doesn't survive it
		want.Lowered, want.Raised = nil, nil
	}
	got, w := observe(t, r, l, lowerTo), plain(want)
	if got.QueueDepth == 0 && got.HintFreedTwice { // in the scan already
		w = queue.Prediction{Rules: w.Rules, Limits: w.Limits, HWQueues: w.HWQueues, CmdPerLUN: w.CmdPerLUN, HintFreedTwice: w.HintFreedTwice}
	}
	got = plain(got)
	if !reflect.DeepEqual(got, w) {
		t.Errorf("%s, %+v, lowered to %d:\nmodel   %+v %+v %+v\npredict %+v %+v %+v", r.Name, l, lowerTo, got, got.Lowered, got.Raised, w, w.Lowered, w.Raised)
		return false
	}
	return true
}

// What queue.Predict says is what the model reaches at rest: for each preset
// that isn't ATA (libata has its own say about depths), and for limits by
// chance.
func TestPredictIsReached(t *testing.T) {
	for _, r := range queue.All() {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			for _, h := range sim.Hosts() {
				if h.ATA == sim.NoATA && h.Limits.HostMax() <= 2048 {
					same(t, r, h.Limits, 8)
				}
			}
			same(t, r, queue.Limits{CanQueue: 8192, CmdPerLUN: 8192, HWQueues: 1}, 0)
			check := func(l limits) bool { return same(t, r, l.Limits, 1+l.CanQueue/2) }
			if err := quick.Check(check, &quick.Config{MaxCount: 60, Rand: rand.New(rand.NewSource(1))}); err != nil {
				t.Error(err)
			}
		})
	}
}

// limits are small ones, with the borders often hit.
type limits struct{ queue.Limits }

func (limits) Generate(r *rand.Rand, _ int) reflect.Value {
	pick := func(n ...int) int { return n[r.Intn(len(n))] }
	l := queue.Limits{
		CanQueue:         pick(1, 2, 3, 4, 31, 32, 64, 1+r.Intn(100)),
		HWQueues:         pick(1, 1, 2, 4, 1+r.Intn(8)),
		CPUs:             pick(0, 0, 1, 2, 8),
		HostTagset:       r.Intn(2) == 0,
		NeedsBudgetToken: r.Intn(4) == 0,
		Configures:       r.Intn(2) == 0,
		ClampsDepth:      r.Intn(4) == 0,
	}
	l.CmdPerLUN = pick(0, 1, l.CanQueue-1, l.CanQueue, l.CanQueue+1, 1+r.Intn(l.CanQueue))
	if l.Configures && r.Intn(2) == 0 {
		l.ConfiguredDepth = pick(1, 32, l.CanQueue, l.CanQueue+1)
	}
	return reflect.ValueOf(limits{l})
}
