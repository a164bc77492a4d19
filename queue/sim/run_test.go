package sim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"

	"lunlab/queue"
	"lunlab/queue/sim"
)

// The same explorer comes to the same report, byte for byte, and a finding's
// case breaks the same invariant when it is run again.
func TestDeterminism(t *testing.T) {
	for _, c := range []struct{ rules, host string }{
		{"v3", "ahci"}, {"v3", "libsas-2q"}, {"v2", "scsi_debug"}, {"v1", "scsi_debug-hmq"}, {"6.12", "iscsi_tcp"},
	} {
		t.Run(c.rules+"/"+c.host, func(t *testing.T) {
			t.Parallel()
			e := sim.Explorer{Rules: rules(t, c.rules), Host: host(t, c.host), Seed: 7, Steps: 150_000}
			var first []byte
			for range 2 {
				rep, err := e.Explore(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				raw, err := json.Marshal(rep)
				if err != nil {
					t.Fatal(err)
				}
				if first == nil {
					first = raw
				} else if !bytes.Equal(first, raw) {
					t.Fatalf("twice the same explorer:\n%s\n%s", first, raw)
				}
				for _, f := range rep.Findings {
					replay(t, f)
				}
			}
		})
	}
}

func replay(t *testing.T, f sim.Finding) {
	t.Helper()
	res, err := f.Case.Run(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range res.Violations {
		if v == f.Violation {
			return
		}
	}
	t.Errorf("%v with %d deviations: got %+v, want %+v", f.Case.Plan, len(f.Case.Schedule), res.Violations, f.Violation)
}

// Shrinking leaves what is needed, and little else.
func TestShrink(t *testing.T) {
	for _, c := range []struct {
		rules, host string
		invariant   sim.Invariant
		most        int // steps of the plan
	}{
		{"v2", "ata_piix", sim.NoStall, 1},
		{"v3", "mvsas", sim.NCQTag, 1},
		{"v3", "ahci", sim.FreedOnce, 1},
		{"v3", "libsas-2q", sim.SlotHeld, 4},
	} {
		rep, err := sim.Explorer{Rules: rules(t, c.rules), Host: host(t, c.host), Seed: 1, Steps: 500_000}.Explore(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range rep.Findings {
			if f.Violation.Invariant != c.invariant {
				continue
			}
			found = true
			if n := len(f.Case.Plan); n > c.most {
				t.Errorf("%s on %s: %v, want %d steps at most", c.rules, c.host, f.Case.Plan, c.most)
			}
			if f.Trace == nil || len(f.Trace.Entries) == 0 {
				t.Errorf("%s on %s: no trace", c.rules, c.host)
			}
		}
		if !found {
			t.Errorf("%s on %s: %s not found", c.rules, c.host, c.invariant.Name)
		}
	}
}

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
