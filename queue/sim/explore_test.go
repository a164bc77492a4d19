//go:build !race

// The race detector remembers every coroutine that there ever was, of which
// there are millions here: gigabytes, and hours. The model runs one at a time.

package sim_test

import (
	"bytes"
	"encoding/json"
	"testing"

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
