package scenario_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
	"lunlab/test/scenario"
)

// ktest runs scenarios on a kernel in a guest and returns the results by name.
func ktest(t *testing.T, img kernel.Image, ss []scenario.Scenario) (scenario.Kernel, map[string]scenario.Result) {
	t.Helper()
	return ktestWith(t, img, ss, scenario.Options{})
}

func ktestWith(t *testing.T, img kernel.Image, ss []scenario.Scenario, o scenario.Options) (scenario.Kernel, map[string]scenario.Result) {
	t.Helper()
	return ktestTaking(t, img, ss, o, func(scenario.Event) {})
}

// ktestTaking is ktest with a look at all events.
func ktestTaking(t *testing.T, img kernel.Image, ss []scenario.Scenario, o scenario.Options, take func(scenario.Event)) (scenario.Kernel, map[string]scenario.Result) {
	t.Helper()
	report := new(scenario.Report)
	complaints, err := scenario.RunGuest(t.Context(), kernel.Config{
		Kernel: img.Kernel, Modules: img.Modules, Init: kerneltest.Lunlab(t), SMP: 4, Memory: 1536, Logf: t.Logf,
	}, ss, o, func(e scenario.Event) {
		report.Take(e)
		take(e)
	})
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	report.WriteTable(&table)
	t.Log("\n" + table.String())
	for _, c := range complaints {
		t.Errorf("while it booted, kernel %s: %s", c.Kind, c.Line)
	}
	byName := map[string]scenario.Result{}
	for _, r := range report.Results {
		byName[r.Name] = r
	}
	if len(byName) != len(ss) {
		t.Errorf("%d results of %d scenarios", len(byName), len(ss))
	}
	return report.Kernel, byName
}

// asPredicted wants each to be as predicted.
func asPredicted(t *testing.T, results map[string]scenario.Result) {
	t.Helper()
	for name, r := range results {
		if r.Verdict != scenario.AsPredicted {
			t.Errorf("%s: %s: %s %s", name, r.Verdict, r.Error, strings.Join(r.Differences(), "; "))
		}
	}
}

// The distribution's kernel allocates every map and holds every depth.
func TestStock(t *testing.T) {
	k, results := ktest(t, kerneltest.Stock(t), scenario.Limits())
	asPredicted(t, results)
	if fmt.Sprint(k.Rules) != "[6.12]" {
		t.Errorf("rules %v, want 6.12", k.Rules)
	}
	for name, r := range results {
		if r.MapObserved != "allocated" {
			t.Errorf("%s: budget map %s, want allocated", name, r.MapObserved)
		}
		if r.LowerTo > 0 && r.Lowered.Device != r.LowerTo {
			t.Errorf("%s: %d in flight at queue_depth %d", name, r.Lowered.Device, r.LowerTo)
		}
	}
}

// The kernel's own initiator makes its limits of node.session.cmds_max, 32, 64 and
// 128 here, and queue_depth, and the target sees no more.
func TestISCSI(t *testing.T) {
	need.Program(t, "iscsistart", "open-iscsi")
	var ss []scenario.Scenario
	for _, name := range []string{"17/8", "49/32", "113/200"} {
		found, err := scenario.Find("limits/iscsi_tcp/1/" + name)
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", name, found, err)
		}
		ss = append(ss, found...)
	}
	_, results := ktest(t, kerneltest.Stock(t), ss)
	asPredicted(t, results)
	for name, most := range map[string]int{"17/8": 8, "49/32": 32, "113/200": 113} {
		r := results["limits/iscsi_tcp/1/"+name]
		if r.LimitsResult == nil || r.Before.Target != most || r.Lowered.Target != r.LowerTo {
			t.Errorf("%s: the target saw %v, want %d, and fewer when the depth is lowered", name, r.LimitsResult, most)
		}
	}
}

// observed is what a kernel of the series shows, in figures that were measured
// by hand before there was this program: map, lowered depth held or not.
type observed struct {
	rules   string
	elided  []string // names of the cases without a map
	notHeld bool     // the lowered depth is stored and not held without a map
	hangs   []string // names of the cases whose LUN is never scanned to the end
	refused bool     // the lowered depth is refused without a map
}

var series = map[string]observed{
	"base": {rules: "[6.12]"},
	"s2":   {rules: "[6.12]"},
	"v2a": {rules: "[v2]", refused: true, elided: elidedByV2, hangs: []string{
		"limits/scsi_debug/1/64/64", "limits/scsi_debug/2/64/64/host-wide", "limits/iscsi_tcp/1/49/64",
	}},
	"v2b": {rules: "[v3]", notHeld: true, elided: elidedByV2},
	"no3": {rules: "[v3-scsi]", notHeld: true, elided: elidedByV2},
	"nbt": {rules: "[v4]", notHeld: true, elided: elidedByV2},
}

// elidedByV2 are the cases with one hardware queue, or host-wide tags, and a
// depth of at least can_queue.
var elidedByV2 = []string{
	"limits/tcm_loop/1/64/64", "limits/tcm_loop/1/64/128", "limits/tcm_loop/1/1/1", "limits/tcm_loop/1/8192/8192",
	"limits/scsi_debug/1/64/64", "limits/scsi_debug/2/64/64/host-wide", "limits/iscsi_tcp/1/49/64",
	"limits/virtio_scsi/1/256/256",
}

// seriesCases are those that tell the rules apart: all of them take two minutes
// on each kernel. Where every map is allocated, a few show it.
func seriesCases(t *testing.T, want observed, known bool) []scenario.Scenario {
	t.Helper()
	if known && want.elided == nil {
		return find(t, "limits/tcm_loop/1/64/64", "limits/tcm_loop/2/64/64", "limits/scsi_debug/2/64/64/host-wide", "limits/iscsi_tcp/1/49/64",
			"limits/virtio_scsi/1/256/256")
	}
	return find(t, append([]string{
		"limits/tcm_loop/1/64/32", "limits/tcm_loop/2/64/64", "limits/tcm_loop/4/64/128", "limits/scsi_debug/2/64/64", "limits/virtio_scsi/1/64/16", "limits/virtio_scsi/4/256/256",
	}, elidedByV2...)...)
}

// The kernels of the series leave maps out exactly where the rules say, and do
// not hold a depth that is lowered without one.
func TestSeries(t *testing.T) {
	for _, name := range kerneltest.Names(t) {
		want, known := series[name]
		t.Run(name, func(t *testing.T) {
			k, results := ktest(t, kerneltest.Named(t, name), seriesCases(t, want, known))
			asPredicted(t, results)
			if !known {
				return // of a kernel that we know nothing of, the rules that it shows have to be right
			}
			if fmt.Sprint(k.Rules) != want.rules {
				t.Errorf("rules %v, want %s", k.Rules, want.rules)
			}
			elided := map[string]bool{}
			for _, n := range want.elided {
				elided[n] = true
			}
			for name, r := range results {
				if slices.Contains(want.hangs, name) {
					if r.MapObserved != "scan hangs" {
						t.Errorf("%s: %s, want the scan to hang", name, r.MapObserved)
					}
					if r.Hang == nil || !strings.Contains(strings.Join(r.Hang.Lines(), "\n"), " scsi_") {
						t.Errorf("%s: no task is shown that scans: %+v", name, r.Hang)
					}
					continue
				}
				if got := r.MapObserved == "elided"; got != elided[name] {
					t.Errorf("%s: budget map %s", name, r.MapObserved)
				}
				if !elided[name] || r.LowerTo == 0 {
					continue
				}
				if want.notHeld && (r.LowerErr != "" || r.Lowered.Device != r.Case.CanQueue) {
					t.Errorf("%s: lowered to %d: error %q, %d in flight; want the whole can_queue", name, r.LowerTo, r.LowerErr, r.Lowered.Device)
				}
				if want.refused && r.LowerErr != "EINVAL" {
					t.Errorf("%s: lowered to %d: error %q, want EINVAL", name, r.LowerTo, r.LowerErr)
				}
			}
		})
	}
}

// ktest --here is tried on a kernel that is not this machine's own: in a guest.
func TestHere(t *testing.T) {
	vm := kerneltest.Boot(t, kerneltest.Stock(t), kernel.Config{
		SMP: 2, Memory: 1024, Load: []string{"sd_mod", "configfs"}, Carry: []string{"target_core_user", "tcm_loop"},
	}, "fio")
	var out, errs bytes.Buffer
	code, err := vm.Run(t.Context(), []string{"/bin/lunlab", "ktest", "--here", "--scenario", "limits/tcm_loop/1/64/64", "--json", "-"}, nil, &out, &errs)
	if err != nil || code != 0 {
		t.Fatalf("exit status %d, %v\n%s%s", code, err, out.String(), errs.String())
	}
	var r scenario.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if len(r.Results) != 1 || r.Results[0].MapObserved != "allocated" || r.Kernel.Accel != "" {
		t.Errorf("report: %+v", r)
	}

	// What is missing is said, all of it at once.
	code, err = vm.Run(t.Context(), []string{"/bin/lunlab", "ktest", "--here"}, []string{"PATH=/sbin"}, nil, &errs)
	if err != nil || code != scenario.ExitCouldNotRun {
		t.Fatalf("without scsi_debug and fio: exit status %d, %v; want 2", code, err)
	}
	for _, want := range []string{"no fio", "no scsi_debug"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, errs.String())
		}
	}
}

// A scenario that the guest is lost in is a result, and a new guest carries out
// the rest.
func TestGuestLost(t *testing.T) {
	img := kerneltest.Stock(t)
	mark := kerneltest.Mark()
	ss := scenario.Limits()[:2]
	report := new(scenario.Report)
	killed := false
	_, err := scenario.RunGuest(t.Context(), kernel.Config{
		Kernel: img.Kernel, Modules: img.Modules, Init: kerneltest.Lunlab(t), SMP: 2, Memory: 1536, Accel: "tcg", Append: mark,
	}, ss, scenario.Options{}, func(e scenario.Event) {
		report.Take(e)
		if e.Step != nil && e.Step.What == "verify" && !killed {
			killed = true
			for _, pid := range kerneltest.Guests(mark) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != 2 {
		t.Fatalf("%d results, want 2", len(report.Results))
	}
	lost, after := report.Results[0], report.Results[1]
	if lost.Verdict != scenario.Failed || !strings.Contains(lost.Error, "verify: the guest ended") {
		t.Errorf("the one that was lost: %s: %s", lost.Verdict, lost.Error)
	}
	if after.Verdict != scenario.AsPredicted {
		t.Errorf("the one after: %s: %s %q", after.Verdict, after.Error, after.Differences())
	}
	if got := report.ExitStatus(); got != scenario.ExitCouldNotRun {
		t.Errorf("exit status %d, want 2", got)
	}
}
