package scenario_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lunlab/test/kernel/kerneltest"
	"lunlab/test/scenario"
)

// User-Mode Linux without BTF: only the target counts, and the rules have to be
// named where they are not of one mind.
func TestUML(t *testing.T) {
	img := kerneltest.UML(t)
	ss := find(t, "limits/virtio_scsi/1/256/64", "limits/virtio_scsi/1/256/256", "limits/virtio_scsi/1/64/64", "limits/scsi_debug/1/64/64", "counters/rest", "sched/switch")

	k, results := ktest(t, img, ss)
	if len(k.Rules) < 2 || k.CPUs != 1 || k.Accel != "uml" {
		t.Errorf("kernel %+v", k)
	}
	for name, want := range map[string]string{
		"limits/virtio_scsi/1/256/64":  scenario.AsPredicted,
		"limits/virtio_scsi/1/256/256": scenario.Skipped,
		"limits/virtio_scsi/1/64/64":   scenario.Skipped,
		"limits/scsi_debug/1/64/64":    scenario.Skipped,
		"counters/rest":                scenario.AsPredicted, // fio's two jobs have one CPU
		"sched/switch":                 scenario.AsPredicted,
	} {
		if r := results[name]; r.Verdict != want {
			t.Errorf("%s: %s, want %s: %s %q", name, r.Verdict, want, r.Error, r.Differences())
		}
	}
	r := results["limits/virtio_scsi/1/256/64"]
	if r.MapObserved != "" || r.Before != (scenario.Peak{Target: 64, Device: -1}) || r.Lowered != (scenario.Peak{Target: 8, Device: -1}) {
		t.Errorf("map %q, most in flight %+v, lowered %+v", r.MapObserved, r.Before, r.Lowered)
	}
	clamped := func(c scenario.Check) bool {
		return c.What == "queue_depth 256 written, reads back" && c.Observed == "64"
	}
	if !slices.ContainsFunc(r.Checks, clamped) {
		t.Errorf("no check of the driver's own limit: %q", r.Checks)
	}

	// Rules that it doesn't have are found out, with the target alone to tell.
	ss = find(t, "limits/virtio_scsi/1/256/256")
	_, results = ktestWith(t, img, ss, scenario.Options{Rules: "6.12"})
	asPredicted(t, results)
	_, results = ktestWith(t, img, ss, scenario.Options{Rules: "v3"})
	r = results["limits/virtio_scsi/1/256/256"]
	if d := r.Differences(); r.Verdict != scenario.Differs || len(d) != 1 || !strings.Contains(d[0], "predicted 256, observed 32") {
		t.Errorf("by the rules v3: %s: %s %q", r.Verdict, r.Error, d)
	}
}

// The kernel gives up a disk that answers nothing, and waits for an answer that
// comes late: minutes in virtual time, and each run the same.
func TestVirtualTime(t *testing.T) {
	img := kerneltest.UML(t)
	var first string
	for range 10 {
		_, results := ktestWith(t, img, scenario.Virtual(), scenario.Options{VirtualTime: true})
		asPredicted(t, results)
		trace := ""
		for _, name := range []string{"eh/escalation", "eh/late-answer", "eh/held-reset"} {
			r := results[name]
			trace += fmt.Sprintf("%s %v %+v %+v\n", name, r.Elapsed.Round(time.Second), r.Facts, r.Checks)
		}
		if first == "" {
			first = trace
		} else if trace != first {
			t.Fatalf("a run was\n%s\nand another\n%s", first, trace)
		}
	}
	for _, want := range []string{"eh/escalation 2m2s", "eh/late-answer 1m40s"} {
		if !strings.Contains(first, want) {
			t.Errorf("no %q in\n%s", want, first)
		}
	}
}
