package scenario

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lunlab/queue"
	"lunlab/test/kernel"
)

// sample has a result of each verdict, and one that isn't about limits.
func sample() *Report {
	limits := func(queues, canQueue, cmdPerLUN int) queue.Limits {
		return queue.Limits{HWQueues: queues, CanQueue: canQueue, CmdPerLUN: cmdPerLUN}
	}
	good := Result{Elapsed: 7 * time.Second, LimitsResult: &LimitsResult{
		Case: Case{Host: TCMLoop, Limits: limits(1, 64, 64)}, QueueDepth: 64, LowerTo: 8,
		MapPredicted: "elided", MapObserved: "elided",
		Before: Peak{64, 64}, Lowered: Peak{64, 64}, Raised: Peak{64, 64}, IOPS: 3012.4,
	}}
	good.check("budget map", "elided", "elided", "one hardware queue")
	differs := Result{Complaints: []kernel.Complaint{{Kind: "warning", Line: "WARNING: CPU: 0"}}, LimitsResult: &LimitsResult{
		Case:       Case{Host: SCSIDebug, Limits: queue.Limits{HWQueues: 2, CanQueue: 64, CmdPerLUN: 64, HostTagset: true}},
		QueueDepth: 64, LowerTo: 8, LowerErr: "EINVAL", MapPredicted: "elided", MapObserved: "allocated",
		Before: Peak{-1, 64}, Lowered: Peak{7, 8}, Raised: Peak{-1, 64}, IOPS: 2900,
	}}
	differs.check("budget map", "elided", "allocated", "host-wide tags")
	differs.check("queue_depth", 64, 64, "")
	failed := Result{Error: "fill: the guest ended\n  | last line", LimitsResult: &LimitsResult{
		Case: Case{Host: TCMLoop, Limits: limits(1, 8192, 8192)}, LowerTo: 512, Before: noPeak, Lowered: noPeak, Raised: noPeak,
	}}
	r := &Report{
		Kernel:  Kernel{Release: "6.12.0", Version: "#1 SMP", CPUs: 4, Accel: "tcg", Rules: []string{"v3", "v3-scsi"}, Evidence: []string{"no needs_budget_token"}},
		Started: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Elapsed: 61 * time.Second,
	}
	skipped := Result{Verdict: Skipped, Error: "the scan hangs", LimitsResult: &LimitsResult{
		Case: Case{Host: SCSIDebug, Limits: limits(1, 64, 64)}, Before: noPeak, Lowered: noPeak, Raised: noPeak,
	}}
	other := Result{Name: "attach/cycles", Elapsed: 2 * time.Second}
	other.check("hosts left", 0, 0, "")
	other.fact("cycles", 200)
	other.fact("longest", "11 ms")
	for _, res := range []Result{good, differs, failed, skipped, other} {
		if res.LimitsResult != nil {
			res.Name = res.Case.Scenario().Name
		}
		res.judge()
		r.Take(Event{Result: &res})
	}
	r.Complaints = []kernel.Complaint{{Kind: "lockdep", Line: "WARNING: suspicious RCU usage"}}
	r.Error, r.NotRun = "not done after 1m0s (--timeout)", []string{"limits/tcm_loop/4/64/64"}
	return r
}

// golden compares with a file in testdata, or writes it if LUNLAB_UPDATE is set.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("LUNLAB_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestTable(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", b.String())
}

func TestKTAP(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteKTAP(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.ktap", b.String())
}

func TestJUnit(t *testing.T) {
	var b strings.Builder
	if err := sample().WriteJUnit(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "junit.xml", b.String())
	var s junitSuite
	if err := xml.Unmarshal([]byte(b.String()), &s); err != nil {
		t.Errorf("it doesn't read back: %v", err)
	}
	if s.Tests != len(s.Cases) || s.Tests != 7 || s.Failures != 2 || s.Errors != 2 || s.Skipped != 1 {
		t.Errorf("%d tests, %d cases, %d failures, %d errors, %d skipped; want 7, 7, 2, 2, 1", s.Tests, len(s.Cases), s.Failures, s.Errors, s.Skipped)
	}
}

func TestJSONReadsBack(t *testing.T) {
	want := sample()
	var b strings.Builder
	if err := want.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got := new(Report)
	if err := json.Unmarshal([]byte(b.String()), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestExitStatus(t *testing.T) {
	all := sample().Results
	for _, c := range []struct {
		name    string
		results []Result
		want    int
	}{
		{"none", nil, ExitCouldNotRun},
		{"as predicted", all[:1], ExitAsPredicted},
		{"one differs", all[:2], ExitDiffers},
		{"one failed", all[:3], ExitCouldNotRun},
		{"one skipped", []Result{all[0], all[3]}, ExitAsPredicted},
		{"all skipped", all[3:4], ExitCouldNotRun},
	} {
		if got := (&Report{Results: c.results}).ExitStatus(); got != c.want {
			t.Errorf("%s: exit status %d, want %d", c.name, got, c.want)
		}
	}
	r := &Report{Results: all[:1], Complaints: []kernel.Complaint{{Kind: "oops"}}}
	if got := r.ExitStatus(); got != ExitDiffers {
		t.Errorf("a kernel that complained while it booted: exit status %d, want %d", got, ExitDiffers)
	}
}

// A run that is cut off does not read like a success.
func TestEnd(t *testing.T) {
	ss := Limits()[:3]
	r := &Report{Started: time.Now()}
	r.Take(Event{Result: &Result{Name: ss[0].Name, Verdict: AsPredicted}})
	r.End(ss, errors.New("time is up"))
	if diff := cmp.Diff([]string{ss[1].Name, ss[2].Name}, r.NotRun); diff != "" {
		t.Errorf("not run (-want +got):\n%s", diff)
	}
	if got := r.ExitStatus(); got != ExitCouldNotRun {
		t.Errorf("exit status %d, want %d", got, ExitCouldNotRun)
	}
	if want := "1 of 3 scenarios as predicted, 2 not run"; !strings.HasPrefix(r.Summary(), want) {
		t.Errorf("summary %q, want %q", r.Summary(), want)
	}
}
