package scenario_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/scenario"
)

// find returns the scenarios that have these names.
func find(t *testing.T, names ...string) []scenario.Scenario {
	t.Helper()
	var out []scenario.Scenario
	for _, n := range names {
		found, err := scenario.Find(n)
		if err != nil || len(found) != 1 || found[0].Name != n {
			t.Fatalf("%s: %v, %v", n, found, err)
		}
		out = append(out, found[0])
	}
	return out
}

// The scenarios that take a short time, on the distribution's kernel.
func TestOthers(t *testing.T) {
	_, results := ktest(t, kerneltest.Stock(t), find(t,
		"depth/sweep", "counters/rest", "counters/held", "full/storm", "busy/zero", "eh/abort", "eh/lun-reset",
		"state/offline", "state/refused", "sg/beside",
		"counters/errors", "ua/io", "erase/sanitize", "target/killed", "suspend/devices"))
	asPredicted(t, results)
}

// Without a map, a depth that is written is not held, and TASK SET FULL lowers
// none, so that the storm goes on; the counters are exact as they are with one.
func TestOthersElided(t *testing.T) {
	_, results := ktest(t, kerneltest.Named(t, "v2b"), find(t, "depth/sweep", "counters/rest", "counters/held", "full/storm"))
	asPredicted(t, results)
	if held := fact(results["depth/sweep"], "depths held"); held != "2 of 10" { // those that are can_queue
		t.Errorf("depth/sweep: %q held, want 2 of 10", held)
	}
}

// Counters that each CPU has its own part of are exact at rest.
func TestOthersPerCPU(t *testing.T) {
	_, results := ktest(t, kerneltest.Named(t, "s2"), find(t, "counters/rest", "counters/held"))
	asPredicted(t, results)
}

func fact(r scenario.Result, what string) string {
	for _, f := range r.Facts {
		if f.What == what {
			return f.Value
		}
	}
	return "no " + what
}

// A name says what it is the name of; any limits have one.
func TestFind(t *testing.T) {
	for pattern, want := range map[string]int{
		"limits":                            len(scenario.Cases()),
		"limits/tcm_loop/2":                 3,
		"limits/*/1/64/64":                  2,
		"limits/tcm_loop/3/100/25":          1,
		"limits/scsi_debug/2/5/5/host-wide": 1,
		"*/*":                               len(scenario.All()),
		"eh":                                6,
	} {
		if found, err := scenario.Find(pattern); err != nil || len(found) != want {
			t.Errorf("%s: %d found, %v, want %d", pattern, len(found), err, want)
		}
	}
	for pattern, want := range map[string]string{
		"nothere":                         "matches no scenario",
		"limits/nothere/1/1/1":            `no host "nothere"`,
		"limits/tcm_loop/9/9":             "isn't three numbers",
		"limits/tcm_loop/1/1/x":           `"x" is not a number above 0`,
		"limits/tcm_loop/1/1/1/host-wide": "no host-wide tags",
		"limits/scsi_debug/1/2/1":         "can_queue for cmd_per_lun",
		"[":                               "syntax error",
	} {
		if _, err := scenario.Find(pattern); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", pattern, err, want)
		}
	}
	for _, s := range scenario.All() {
		if s.Name == "" || s.Shows == "" || len(s.Hosts) == 0 || s.Timeout == 0 {
			t.Errorf("%+v: something is missing", s)
		}
	}
}

// Disks of libata, on QEMU's hosts: the map of an AHCI disk goes when its depth
// becomes 32, and its hint is freed again with the disk; with can_queue 1, the
// series of 2025-11-17 never ends the scan, and the boot with it.
func TestATA(t *testing.T) {
	const frees = "per-CPU allocations freed twice"
	for name, want := range map[string]map[string]string{
		"base": {"ata/rescan": "0"},
		"v2a":  {"ata/rescan": "3", "ata/ata_piix": "scan hangs"},
		"v2b":  {"ata/ahci": "elided", "ata/rescan": "3", "ata/ata_piix": "elided"},
		"nbt":  {"ata/ahci": "allocated", "ata/rescan": "0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, results := ktest(t, kerneltest.Named(t, name), find(t, slices.Sorted(maps.Keys(want))...))
			asPredicted(t, results)
			got := map[string]string{}
			for name, r := range results {
				if got[name] = fact(r, frees); r.LimitsResult != nil {
					got[name] = r.MapObserved
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("maps, frees (-want +got):\n%s", diff)
			}
		})
	}
}

// Beside a kernel without the patches, one with them shows what they change and
// nothing else.
func TestBaseline(t *testing.T) {
	ss := find(t, "limits/tcm_loop/1/64/64", "counters/held")
	run := func(name string) []*scenario.Report {
		report := new(scenario.Report)
		img := kerneltest.Named(t, name)
		_, err := scenario.RunGuest(t.Context(), kernel.Config{
			Kernel: img.Kernel, Modules: img.Modules, Init: kerneltest.Lunlab(t), SMP: 2, Memory: 1536, Logf: t.Logf,
		}, ss, scenario.Options{}, report.Take)
		report.End(ss, err)
		return []*scenario.Report{report}
	}
	c := scenario.Compare(run("base"), run("v2b"))
	var got []string
	for _, d := range c.Differences {
		got = append(got, d.Scenario+": "+d.What)
	}
	want := []string{
		": rules",
		"limits/tcm_loop/1/64/64: budget map",
		"limits/tcm_loop/1/64/64: budget tokens",
		"limits/tcm_loop/1/64/64: most in flight after queue_depth 8 was written, at the target",
		"limits/tcm_loop/1/64/64: most in flight after queue_depth 8 was written, in the kernel",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

// counts holds what the tracepoints saw against what the target did.
func counts(t *testing.T, trace string, r scenario.Result) {
	t.Helper()
	errors := strings.Count(trace, "sense=(key=0x3 asc=0x11 ascq=0x0)")
	if want := fact(r, "failed"); fmt.Sprint(errors) != want {
		t.Errorf("the trace of counters/rest has %d medium errors, and the target %s", errors, want)
	}
	if !strings.Contains(trace, " block_rq_issue: ") || !strings.Contains(trace, " scsi_dispatch_cmd_start: ") {
		t.Errorf("the trace of counters/rest lacks block_rq_issue or scsi_dispatch_cmd_start: %.2000s", trace)
	}
}

// A scenario whose time is over shows what was in flight then, at both ends, and
// where the tasks were that wait for it.
func TestHang(t *testing.T) {
	ss := find(t, "counters/rest", "selftest/hang")
	traces := map[string]string{}
	_, results := ktestTaking(t, kerneltest.Stock(t), ss, scenario.Options{Trace: true}, func(e scenario.Event) {
		if e.Trace != nil {
			traces[e.Trace.Scenario] += string(e.Trace.Text)
		}
	})
	counts(t, traces["counters/rest"], results["counters/rest"])
	r := results["selftest/hang"]
	if r.Verdict != scenario.Failed || !strings.Contains(r.Error, "it took over 15s") || r.Hang == nil {
		t.Fatalf("%s: %s, hang %v; want it to be too long", r.Verdict, r.Error, r.Hang)
	}
	// Four of eight reads have budget tokens, and are at the target.
	tags, tokens := map[int]bool{}, map[int]bool{}
	for _, c := range r.Hang.Kernel {
		tags[c.Tag], tokens[c.Token] = true, true
	}
	if len(r.Hang.Kernel) != 4 || len(tags) != 4 || len(tokens) != 4 {
		t.Errorf("in flight in the kernel: %+v; want 4 with different tags and tokens", r.Hang.Kernel)
	}
	for _, c := range r.Hang.Target {
		if c.Command != "READ(10)" || c.LBA < 2048 || c.Blocks != 8 || c.Age <= 0 || len(c.Tags) != 1 || !tags[c.Tags[0]] {
			t.Errorf("in flight at the target: %+v; want a READ(10) of fio's with the kernel's tag", c)
		}
	}
	if len(r.Hang.Target) != 4 {
		t.Errorf("%d in flight at the target, want 4", len(r.Hang.Target))
	}
	text := strings.Join(r.Hang.Lines(), "\n")
	for _, want := range []string{"task fio, ", " io_cqring_wait+", "device_busy 4", "hctx0/tags:", "busy=8", "hctx0/dispatch:"} {
		if !strings.Contains(text, want) {
			t.Errorf("the diagnosis does not say %q", want)
		}
	}
}
