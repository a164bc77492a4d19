//go:build !race

package sim_test

import (
	"strings"
	"testing"

	"lunlab/queue"
	"lunlab/queue/sim"
)

func explore(t *testing.T, r queue.Rules, h sim.Host, seed uint64, steps int) sim.Report {
	t.Helper()
	rep, err := sim.Explorer{Rules: r, Host: h, Seed: seed, Steps: steps, Raw: true}.Explore(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// faults are what is known to be wrong with some versions of the series. The
// model isn't told of any: it has the rules, and the same invariants for all.
var faults = []struct {
	name      string
	invariant sim.Invariant
	of        string
	host      string
	with      []string // these rules have the fault on this host
	clean     []string // these don't
	says      string   // part of the finding's words
}{
	{"a lowered depth isn't held without a map", sim.DepthHeld, "written", "tcm_loop",
		[]string{"v3", "v3-scsi", "v4"}, []string{"6.12", "6.19"}, "(written)"},
	{"nor where the tags are host-wide", sim.DepthHeld, "written", "scsi_debug-hmq",
		[]string{"v1", "v3", "v4"}, []string{"6.12", "6.19"}, "(written)"},
	{"the cap of 4,096 is lost", sim.DepthHeld, "as attached", "tcm_loop-8192",
		[]string{"v3", "v4"}, []string{"6.12", "v1", "6.19"}, "in flight at queue_depth 4096 (as attached)"},
	{"a SAS host's request tag passes 31", sim.NCQTag, "request tag", "mvsas",
		[]string{"v3"}, []string{"6.12", "v1", "6.19", "v2", "v3-scsi", "v4"}, "must be below 32"},
	{"so with host-wide tags", sim.NCQTag, "request tag", "hisi_sas",
		[]string{"v3"}, []string{"6.12", "v1", "6.19", "v3-scsi", "v4"}, "must be below 32"},
	{"without a map there is no token for libata", sim.NCQTag, "budget token", "libsas-32",
		[]string{"v3-scsi", "v4"}, []string{"6.12", "v1", "6.19"}, "budget token 2147483647"},
	{"two hardware queues' tags share command slots", sim.SlotHeld, "request tag", "libsas-2q",
		[]string{"v3"}, []string{"6.12", "v1", "6.19", "v2", "v3-scsi", "v4"}, "share an ata_queued_cmd"},
	{"the scan hangs at can_queue 1", sim.NoStall, "scan", "ata_piix",
		[]string{"v2"}, []string{"6.12", "v1", "6.19", "v3", "v3-scsi", "v4"}, "a map of depth 0"},
	{"the map's hint is freed twice", sim.FreedOnce, "per-CPU hint", "ahci",
		[]string{"v2", "v3", "v3-scsi"}, []string{"6.12", "v1", "6.19", "v4"}, "freed a second time"},
	{"a depth lowered twice reads a map that isn't there", sim.UseAfterFree, "map", "scsi_debug-hmq",
		[]string{"v1"}, []string{"6.12", "6.19", "v3", "v4"}, "isn't there"},
	{"without a map BUSY isn't heeded", sim.BusyHeeded, "BUSY", "scsi_debug",
		[]string{"v3", "v4"}, []string{"6.12", "v1", "6.19"}, "device_blocked"},
}

// Each fault is found from each of ten seeds, with far fewer steps than a
// minute has.
func TestFaultsAreFound(t *testing.T) {
	const most = 16_000_000 // some ten seconds
	for _, f := range faults {
		for i, name := range f.with {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				r, h := rules(t, name), host(t, f.host)
				seeds := uint64(10)
				if i > 0 {
					seeds = 1
				}
			seeds:
				for seed := range seeds {
					for steps := 100_000; steps <= most; steps *= 2 {
						for _, got := range explore(t, r, h, seed, steps).Findings {
							if got.Violation.Invariant == f.invariant && got.Violation.Of == f.of && strings.Contains(got.Violation.What, f.says) {
								continue seeds
							}
						}
					}
					t.Errorf("seed %d: not found in %d steps", seed, most)
				}
			})
		}
	}
}

// Versions without a fault are clean of it, and those that allocate always are
// clean of all.
func TestCleanVersions(t *testing.T) {
	for _, f := range faults {
		for _, name := range f.clean {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				for _, got := range explore(t, rules(t, name), host(t, f.host), 1, 100_000).Findings {
					if got.Violation.Invariant == f.invariant && got.Violation.Of == f.of {
						t.Errorf("got %q, want none of %s/%s", got.Violation.What, f.invariant.Name, f.of)
					}
				}
			})
		}
	}
	for _, name := range []string{"6.12", "6.19"} {
		for _, h := range sim.Hosts() {
			t.Run(h.Name+"/"+name, func(t *testing.T) {
				t.Parallel()
				for _, seed := range []uint64{1} {
					for _, got := range explore(t, rules(t, name), h, seed, 150_000).Findings {
						t.Errorf("seed %d: %s: %s, by %v", seed, got.Violation.Invariant.Name, got.Violation.What, got.Case.Plan)
					}
				}
			})
		}
	}
}
