package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/test/kernel"
)

// ran is a run with one limits scenario and one other.
func ran(rules, budgetMap string, inFlight int, iops float64, more ...Result) *Report {
	limits := Result{Name: "limits/tcm_loop/1/64/64", Verdict: AsPredicted, LimitsResult: &LimitsResult{IOPS: iops}}
	limits.check("budget map", budgetMap, budgetMap, "")
	limits.check("most in flight", inFlight, inFlight, "")
	other := Result{Name: "counters/rest", Verdict: AsPredicted}
	other.check("iodone_cnt", 2098, 2098, "")
	return &Report{Kernel: Kernel{Release: "6.12.0", Version: "#1 SMP", Rules: []string{rules}}, Results: append([]Result{limits, other}, more...)}
}

func TestCompare(t *testing.T) {
	hang := Result{Name: "limits/scsi_debug/1/64/64", Verdict: AsPredicted, LimitsResult: &LimitsResult{MapObserved: scanHangs}}
	hang.check("LUN scan", "hangs", "hangs", "")
	ends := Result{Name: hang.Name, Verdict: AsPredicted, LimitsResult: &LimitsResult{}}
	ends.check("can_queue", 64, 64, "")
	ends.check("budget map", "allocated", "allocated", "")
	warns := func(pid string) Result {
		return Result{Name: "eh/abort", Verdict: Differs, Complaints: []kernel.Complaint{{Kind: "warning", Line: "WARNING: CPU: 0 PID: " + pid + " at 0xff" + pid}}}
	}
	atLeast := func(seen int) Result {
		r := run{Result: Result{Name: "stuck/one-of-four", Verdict: AsPredicted}}
		r.checkAtLeast("commands", 200, seen, "")
		return r.Result
	}
	quiet := Result{Name: "eh/abort", Verdict: AsPredicted}
	more := Result{Name: "eh/abort", Verdict: AsPredicted}
	more.check("aborts", 6, 6, "")
	lost := Result{Name: "eh/abort", Verdict: Failed, Error: "hold: the guest ended\nits console"}

	for _, c := range []struct {
		name             string
		baseline, kernel []*Report
		want             []Difference
	}{
		{"the same", []*Report{ran("6.12", "allocated", 8, 900)}, []*Report{ran("6.12", "allocated", 8, 4000)}, nil},
		{"what scatters on either is none",
			[]*Report{ran("6.12", "allocated", 8, 1), ran("6.12", "allocated", 9, 1)}, []*Report{ran("6.12", "allocated", 9, 1), ran("6.12", "allocated", 7, 1)}, nil},
		{"map", []*Report{ran("6.12", "allocated", 8, 1)}, []*Report{ran("v3", "elided", 64, 1)}, []Difference{
			{"", "rules", []string{"6.12"}, []string{"v3"}},
			{"limits/tcm_loop/1/64/64", "budget map", []string{"allocated"}, []string{"elided"}},
			{"limits/tcm_loop/1/64/64", "most in flight", []string{"8"}, []string{"64"}},
		}},
		{"what ends early has not looked at all",
			[]*Report{ran("6.12", "allocated", 8, 1, ends)}, []*Report{ran("6.12", "allocated", 8, 1, hang)}, []Difference{
				{hang.Name, "LUN scan", nil, []string{"hangs"}},
			}},
		{"more than the least",
			[]*Report{ran("6.12", "allocated", 8, 1, atLeast(200))}, []*Report{ran("6.12", "allocated", 8, 1, atLeast(1107))}, nil},
		{"less than the least",
			[]*Report{ran("6.12", "allocated", 8, 1, atLeast(200))}, []*Report{ran("6.12", "allocated", 8, 1, atLeast(7))}, []Difference{
				{"stuck/one-of-four", "commands", []string{"at least 200"}, []string{"7"}},
			}},
		{"complaints without their numbers",
			[]*Report{ran("6.12", "allocated", 8, 1, warns("7"))}, []*Report{ran("6.12", "allocated", 8, 1, warns("8"))}, nil},
		{"complaints",
			[]*Report{ran("6.12", "allocated", 8, 1, quiet)}, []*Report{ran("6.12", "allocated", 8, 1, warns("8"))}, []Difference{
				{"eh/abort", "complaints of the kernel", []string{"none"}, []string{"kernel warning: WARNING: CPU: N PID: N at N"}},
			}},
		{"one that can't be carried out",
			[]*Report{ran("6.12", "allocated", 8, 1, quiet)}, []*Report{ran("6.12", "allocated", 8, 1, lost)}, []Difference{
				{"eh/abort", "outcome", []string{"carried out"}, []string{"failed: hold: the guest ended"}},
			}},
		{"a thing that only one has", []*Report{ran("6.12", "allocated", 8, 1, quiet)}, []*Report{ran("6.12", "allocated", 8, 1, more)}, []Difference{
			{"eh/abort", "aborts", nil, []string{"6"}},
		}},
	} {
		got := Compare(c.baseline, c.kernel)
		if diff := cmp.Diff(append([]Difference{}, c.want...), got.Differences); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		want := ExitAsPredicted
		if len(c.want) > 0 {
			want = ExitDiffers
		}
		if s := got.ExitStatus(); s != want {
			t.Errorf("%s: exit status %d, want %d", c.name, s, want)
		}
	}
	neither := Compare([]*Report{ran("6.12", "allocated", 8, 1, lost)}, []*Report{ran("6.12", "allocated", 8, 1, lost)})
	if s := neither.ExitStatus(); s != ExitCouldNotRun || !strings.Contains(neither.Summary(), "on neither kernel: eh/abort") {
		t.Errorf("what is carried out on neither: exit status %d, %s", s, neither.Summary())
	}
}

// Three pairs with ratios 1, 2 and 4: the mean is 2, and the interval that of
// Student's distribution with two degrees of freedom, exp(ln 2 ± 4.30 ln 2/√3).
func TestCompareIOPS(t *testing.T) {
	var a, b []*Report
	for _, ratio := range []float64{1, 2, 4} {
		a = append(a, ran("6.12", "allocated", 8, 100))
		b = append(b, ran("6.12", "allocated", 8, 100*ratio))
	}
	c := Compare(a, b)
	if len(c.IOPS) != 1 {
		t.Fatalf("%d ratios, want 1", len(c.IOPS))
	}
	near := func(got, want float64) bool { return got > want*0.995 && got < want*1.005 }
	if r := c.IOPS[0]; !near(r.Baseline, 100) || !near(r.Kernel, 200) || !near(r.Ratio, 2) || !near(r.Low, 0.3578) || !near(r.High, 11.18) {
		t.Errorf("got %+v, want 100, 200, 2, 0.358 to 11.2", r)
	}
	if r := Compare(a[:2], b[:2]).IOPS[0]; r.High != 0 {
		t.Errorf("an interval of two pairs: %+v", r)
	}
}

func TestCompareTable(t *testing.T) {
	c := Compare([]*Report{ran("6.12", "allocated", 8, 100)}, []*Report{ran("v3", "elided", 64, 150)})
	c.Kernel[0].Error = "not done after 15m0s (--timeout)"
	var b strings.Builder
	if err := c.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", b.String())
	if s := c.ExitStatus(); s != ExitCouldNotRun {
		t.Errorf("exit status %d, want 2", s)
	}
}
