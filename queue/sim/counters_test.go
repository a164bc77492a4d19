//go:build !race

package sim

import (
	"math/rand/v2"
	"testing"

	"lunlab/queue"
)

// What sysfs reads of a device's counts while commands come and go is where
// package queue says, with and without a map, and exact at rest.
func TestCountsUnderLoad(t *testing.T) {
	const most = 8
	for _, name := range []string{"6.12", "v3"} {
		r, err := queue.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		reads, loaded := 0, 0
		for seed := range uint64(40) {
			h := Host{Name: "test", Limits: queue.Limits{HWQueues: 2, CanQueue: most, CmdPerLUN: most, HostTagset: true}, Tracks: true, Aborts: true}
			m := newModel(r, h, seed)
			m.limit = exploreSteps
			m.schedule = scheduler{rng: rand.New(rand.NewPCG(seed, 3)), odds: 0.2}
			bad := func(what string, n int64, want queue.Range) {
				if !want.Has(n) {
					t.Errorf("%s, seed %d: %s %d, want %+v", name, seed, what, n, want)
				}
			}
			plan := Plan{
				{Kind: OpScan}, {Kind: OpSettle}, {Kind: OpSubmit, CPU: AllCPUs, N: 30}, {Kind: OpBusy, N: 2}, {Kind: OpRefuse, N: 3},
				{Kind: OpLose, N: 2}, {Kind: OpSubmit, N: 20}, {Kind: OpSettle},
			}
			m.spawn("plan", 0, func(t *task) { m.do(t, plan) })
			m.spawn("sysfs", 1, func(reader *task) {
				for !m.planned {
					s := m.devices[0]
					if s == nil {
						reader.delay(1000)
						continue
					}
					l := &m.luns[0]
					before := l.counted
					requests := int64(s.iorequests)
					reader.step()
					done := int64(s.iodone)
					reader.step()
					busy := int64(s.deviceBusy(reader))
					after := l.counted
					bad("iorequest_cnt", requests, queue.RequestRange(before, after, most))
					bad("iodone_cnt", done, queue.DoneRange(before, after, most, int64(s.iotimeouts)))
					bad("device_busy", busy, queue.BusyRange(before, after, most))
					if reads++; busy > 0 {
						loaded++
					}
					if m.planned || len(m.live) == 0 && m.begun == 0 {
						return
					}
					reader.delay(20_000)
				}
			})
			m.run(m.idle)
			if len(m.observed) != 1 {
				t.Fatalf("%s, seed %d: no device at rest: %v", name, seed, m.violations)
			}
			d, c := m.observed[0], m.luns[0].counted
			if int64(d.IORequests) != c.Received || int64(d.IODone) != c.Answered+int64(d.IOTimeouts) {
				t.Errorf("%s, seed %d: at rest iorequest_cnt %d, iodone_cnt %d with %d time-outs, the target counted %+v", name, seed, d.IORequests, d.IODone, d.IOTimeouts, c)
			}
		}
		if loaded < 100 {
			t.Errorf("%s: %d of %d reads under load", name, loaded, reads)
		}
	}
}
