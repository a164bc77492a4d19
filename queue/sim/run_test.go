package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/queue"
	"lunlab/queue/sim"
)

// TASK SET FULL lowers the depth where there is a map, which holds it, and leaves
// it alone without one.
func TestTaskSetFullLowersTheDepth(t *testing.T) {
	for _, name := range []string{"6.12", "v4"} {
		c := sim.Case{Rules: rules(t, name), Host: host(t, "scsi_debug")}
		for range 12 {
			c.Plan = append(c.Plan, sim.Plan{
				{Kind: sim.OpScan}, {Kind: sim.OpSettle}, {Kind: sim.OpFull, N: 1}, {Kind: sim.OpSubmit, N: 15}, {Kind: sim.OpSettle},
			}...)
		}
		res, err := c.Run(false)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range res.Violations {
			// Without a map device_blocked isn't looked at, whatever set it.
			if v.Invariant != sim.BusyHeeded || res.Devices[0].Mapped {
				t.Errorf("%s: got %+v", name, v)
			}
		}
		switch d := res.Devices[0]; {
		case d.Mapped && (d.QueueDepth >= 192 || d.MapDepth != d.QueueDepth):
			t.Errorf("%s: queue_depth %d with a map of %d, want less than 192 and the same", name, d.QueueDepth, d.MapDepth)
		case !d.Mapped && d.QueueDepth != 192:
			t.Errorf("%s: queue_depth %d without a map, want 192 still", name, d.QueueDepth)
		case d.Mapped != (name == "6.12"):
			t.Errorf("%s: mapped %v", name, d.Mapped)
		}
	}
}

// A device that shares its host's tags takes its share of them, and without fair
// shares all that there are.
func TestFairShares(t *testing.T) {
	c := sim.Case{Rules: rules(t, "6.12"), Host: sim.Host{Name: "test", Limits: queue.Limits{HWQueues: 1, CanQueue: 16, CmdPerLUN: 16}}}
	c.Plan = sim.Plan{
		{Kind: sim.OpScan}, {Kind: sim.OpScan, Slot: 1}, {Kind: sim.OpSettle},
		{Kind: sim.OpSubmit, Slot: 1, N: 1}, {Kind: sim.OpSettle}, // it is active from here on
		{Kind: sim.OpHold}, {Kind: sim.OpSubmit, N: 20}, {Kind: sim.OpSettle},
	}
	for none, want := range map[bool]int{false: 8, true: 16} {
		c.NoFairShares = none
		res, err := c.Run(false)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Violations) > 0 || len(res.Devices) != 2 || res.Devices[0].Peak != want {
			t.Errorf("no fair shares %v: %+v, %v; want %d in flight", none, res.Devices, res.Violations, want)
		}
	}
}

// A case can be written down as JSON, and run again.
func TestCaseJSON(t *testing.T) {
	c := sim.Case{Rules: rules(t, "v3"), Host: host(t, "mvsas"), Seed: 4, Plan: sim.Plan{{Kind: sim.OpScan}}}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var got sim.Case
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if err := json.Unmarshal([]byte(`{"host":{"ata":"scsi"}}`), &got); err == nil {
		t.Error("an ATA host of kind scsi")
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
