package sim_test

import (
	"context"
	"errors"
	"testing"

	"lunlab/queue"
	"lunlab/queue/sim"
)

// A depth that TASK SET FULL lowered is held where there is a map.
func TestTaskSetFullLowersTheDepth(t *testing.T) {
	c := sim.Case{Rules: rules(t, "6.12"), Host: host(t, "scsi_debug")}
	for range 12 {
		c.Plan = append(c.Plan, sim.Plan{
			{Kind: sim.OpScan}, {Kind: sim.OpSettle}, {Kind: sim.OpFull, N: 1}, {Kind: sim.OpSubmit, N: 15}, {Kind: sim.OpSettle},
		}...)
	}
	res, err := c.Run(false)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Violations) > 0 {
		t.Errorf("got %+v, want none", res.Violations)
	}
	if d := res.Devices[0]; d.QueueDepth >= 192 || d.MapDepth != d.QueueDepth {
		t.Errorf("queue_depth %d with a map of %d, want less than 192 and the same", d.QueueDepth, d.MapDepth)
	}
}

// A lost command times out, and is aborted or handled by the error handler; the
// counts agree afterwards.
func TestRecovery(t *testing.T) {
	for _, kind := range []sim.OpKind{sim.OpLose, sim.OpDeafen} {
		for _, name := range []string{"scsi_debug", "ahci", "mvsas", "iscsi_tcp"} {
			c := sim.Case{Rules: rules(t, "6.12"), Host: host(t, name), Plan: sim.Plan{
				{Kind: sim.OpScan}, {Kind: sim.OpSettle}, {Kind: kind, N: 2}, {Kind: sim.OpSubmit, N: 20}, {Kind: sim.OpFlush, N: 1},
			}}
			res, err := c.Run(false)
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Violations) > 0 {
				t.Errorf("%s, %s: got %+v, want none", name, kind, res.Violations)
				continue
			}
			if d := res.Devices[0]; d.IOTimeouts < 2 || d.IORequests != d.IODone {
				t.Errorf("%s, %s: %d time-outs, %d requests, %d done", name, kind, d.IOTimeouts, d.IORequests, d.IODone)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	ok := sim.Case{Rules: queue.All()[0], Host: sim.Hosts()[0]}
	for name, edit := range map[string]func(*sim.Case){
		"slot":   func(c *sim.Case) { c.Plan = sim.Plan{{Kind: sim.OpScan, Slot: sim.MaxDevices}} },
		"CPU":    func(c *sim.Case) { c.Plan = sim.Plan{{Kind: sim.OpSubmit, CPU: 99}} },
		"number": func(c *sim.Case) { c.Plan = sim.Plan{{Kind: sim.OpBusy, N: -1}} },
		"kind":   func(c *sim.Case) { c.Plan = sim.Plan{{Kind: "dance"}} },
		"limits": func(c *sim.Case) { c.Host.Limits.CanQueue = 0 },
	} {
		c := ok
		edit(&c)
		if _, err := c.Run(false); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := sim.LookupHost("vax"); err == nil {
		t.Error("a host named vax")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (sim.Explorer{Rules: queue.All()[0], Host: sim.Hosts()[0], Steps: 1}).Explore(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}
