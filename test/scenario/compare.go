package scenario

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// Comparison holds what two kernels did in the same scenarios against each
// other. Each has run them as often as the other, in turn.
type Comparison struct {
	Baseline []*Report `json:"baseline"`
	Kernel   []*Report `json:"kernel"`

	Differences []Difference `json:"differences"`
	IOPS        []IOPSRatio  `json:"iops,omitempty"`
}

// Difference is something that no run of one kernel showed as a run of the other
// did.
type Difference struct {
	Scenario string   `json:"scenario,omitempty"` // empty for the kernel as a whole
	What     string   `json:"what"`
	Baseline []string `json:"baseline"` // what was seen, each once; none if it was not looked at
	Kernel   []string `json:"kernel"`
}

// IOPSRatio is a limits scenario's 4 KiB random reads a second, the kernel's to
// the baseline's.
type IOPSRatio struct {
	Scenario string  `json:"scenario"`
	Baseline float64 `json:"baseline"` // geometric means of the runs
	Kernel   float64 `json:"kernel"`
	Ratio    float64 `json:"ratio"`
	// Low and High are the ratio's 95 % confidence interval, from the pairs of
	// runs; 0 if there are fewer than three.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
}

// Compare compares the runs of two kernels.
func Compare(baseline, kernel []*Report) *Comparison {
	c := &Comparison{Baseline: baseline, Kernel: kernel, Differences: []Difference{}}
	c.note("", looks(baseline), looks(kernel))
	var names []string
	for _, r := range append(slices.Clone(baseline), kernel...) {
		for _, res := range r.Results {
			if !slices.Contains(names, res.Name) {
				names = append(names, res.Name)
			}
		}
	}
	for _, n := range names {
		a, b := results(baseline, n), results(kernel, n)
		c.note(n, observed(a), observed(b))
		c.ratio(n, a, b)
	}
	return c
}

// seen is what was seen of each thing that was looked at, in the order in which
// it first was.
type seen struct {
	order  []string
	values map[string][]string // each once
	early  bool                // each run ended before it had looked at all
}

func (s *seen) add(what, value string) {
	if s.values == nil {
		s.values = map[string][]string{}
	}
	v, known := s.values[what]
	if !known {
		s.order = append(s.order, what)
	}
	if !slices.Contains(v, value) {
		s.values[what] = append(v, value)
	}
}

// looks is what the runs show of the kernel itself.
func looks(runs []*Report) (s seen) {
	for _, r := range runs {
		s.add("rules", strings.Join(r.Kernel.Rules, " or "))
		s.add("complaints outside the scenarios", kinds(r.outside()))
	}
	return s
}

// observed is what the runs of a scenario saw.
func observed(runs []Result) (s seen) {
	s.early = true
	for _, r := range runs {
		hangs := r.LimitsResult != nil && r.MapObserved == scanHangs
		s.early = s.early && (hangs || r.Verdict == Failed || r.Verdict == Skipped)
		outcome := "carried out"
		if r.Verdict == Failed || r.Verdict == Skipped {
			first, _, _ := strings.Cut(r.Error, "\n")
			outcome = r.Verdict + ": " + first
		}
		s.add("outcome", outcome)
		for _, k := range r.Checks {
			if k.AtLeast && k.OK {
				k.Observed = k.Predicted
			}
			s.add(k.What, k.Observed)
		}
		var said []string
		for _, k := range r.Complaints {
			said = append(said, "kernel "+k.Kind+": "+strings.TrimSpace(k.Line))
		}
		s.add("complaints of the kernel", kinds(said))
	}
	return s
}

var numbers = regexp.MustCompile(`0x[0-9a-fA-F]+|[0-9]+`)

// kinds names complaints, each once, without what differs from run to run.
func kinds(lines []string) string {
	var out []string
	for _, l := range lines {
		if l = numbers.ReplaceAllString(l, "N"); !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return cmp.Or(strings.Join(out, "; "), "none")
}

// note notes the differences between what both saw. A scenario that ended early
// on one kernel has not looked at all that the other has: that is left out, and
// what only the early end shows is not.
func (c *Comparison) note(scenario string, a, b seen) {
	for _, what := range append(slices.Clone(a.order), b.order...) {
		va, inA := a.values[what]
		vb, inB := b.values[what]
		if !inA && a.early || !inB && b.early {
			continue
		}
		if slices.ContainsFunc(va, func(v string) bool { return slices.Contains(vb, v) }) {
			continue
		}
		d := Difference{Scenario: scenario, What: what, Baseline: va, Kernel: vb}
		if !slices.ContainsFunc(c.Differences, func(o Difference) bool { return o.Scenario == scenario && o.What == what }) {
			c.Differences = append(c.Differences, d)
		}
	}
}

func results(runs []*Report, name string) (out []Result) {
	for _, r := range runs {
		for _, res := range r.Results {
			if res.Name == name {
				out = append(out, res)
			}
		}
	}
	return out
}

// t95 are the 97.5 % quantiles of Student's distribution, by degrees of freedom
// from 1 on; beyond them the last is a little too wide.
var t95 = []float64{12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13}

// ratio adds the ratio of the scenario's IOPS, if both measured any.
func (c *Comparison) ratio(name string, a, b []Result) {
	var logs []float64
	var sumA, sumB float64
	for i := range min(len(a), len(b)) {
		if a[i].LimitsResult == nil || b[i].LimitsResult == nil || a[i].IOPS <= 0 || b[i].IOPS <= 0 {
			continue
		}
		sumA, sumB = sumA+math.Log(a[i].IOPS), sumB+math.Log(b[i].IOPS)
		logs = append(logs, math.Log(b[i].IOPS/a[i].IOPS))
	}
	n := float64(len(logs))
	if n == 0 {
		return
	}
	mean := (sumB - sumA) / n
	r := IOPSRatio{Scenario: name, Baseline: math.Exp(sumA / n), Kernel: math.Exp(sumB / n), Ratio: math.Exp(mean)}
	if n >= 3 {
		var squares float64
		for _, l := range logs {
			squares += (l - mean) * (l - mean)
		}
		half := t95[min(len(logs)-1, len(t95))-1] * math.Sqrt(squares/(n-1)/n)
		r.Low, r.High = math.Exp(mean-half), math.Exp(mean+half)
	}
	c.IOPS = append(c.IOPS, r)
}

// neither returns the scenarios that were carried out in no run of either kernel,
// of which nothing can be said.
func (c *Comparison) neither() (names []string) {
	carried := map[string]bool{}
	all := append(slices.Clone(c.Baseline), c.Kernel...)
	for _, r := range all {
		for _, res := range r.Results {
			carried[res.Name] = carried[res.Name] || res.Verdict != Failed && res.Verdict != Skipped
		}
	}
	for name, ok := range carried {
		if !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// ExitStatus is 0 if there is no difference, 1 if there is one, 2 if a run ended
// before its time, or a scenario was carried out on neither kernel.
func (c *Comparison) ExitStatus() int {
	for _, r := range append(slices.Clone(c.Baseline), c.Kernel...) {
		if r.Error != "" || len(r.NotRun) > 0 {
			return ExitCouldNotRun
		}
	}
	if len(c.Differences) > 0 {
		return ExitDiffers
	}
	if len(c.neither()) > 0 {
		return ExitCouldNotRun
	}
	return ExitAsPredicted
}

// WriteTable writes what differs, for people.
func (c *Comparison) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, k := range []struct {
		what string
		runs []*Report
	}{{"baseline", c.Baseline}, {"kernel", c.Kernel}} {
		if len(k.runs) == 0 {
			return nil // no run came so far that it knew its kernel
		}
		of := k.runs[0].Kernel
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", k.what, of.Release, of.Version, plural(len(k.runs), "run"))
	}
	if len(c.Differences) > 0 {
		fmt.Fprintln(t, "\nscenario\twhat\tbaseline\tkernel")
	}
	last := ""
	for _, d := range c.Differences {
		name := cmp.Or(d.Scenario, "the kernel")
		if name == last {
			name = ""
		} else {
			last = name
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, d.What, dash(strings.Join(d.Baseline, " or ")), dash(strings.Join(d.Kernel, " or ")))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(c.IOPS) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\n4 KiB read IOPS\tbaseline\tkernel\tratio\t95 %\t")
		for _, r := range c.IOPS {
			interval := "-"
			if r.High > 0 {
				interval = fmt.Sprintf("%.2f to %.2f", r.Low, r.High)
			}
			fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.2f\t%s\t\n", r.Scenario, r.Baseline, r.Kernel, r.Ratio, interval)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, r := range append(slices.Clone(c.Baseline), c.Kernel...) {
		if r.Error != "" {
			fmt.Fprintf(w, "\n! %s\n", r.Error)
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", c.Summary())
	return err
}

// Summary is the outcome in one line.
func (c *Comparison) Summary() string {
	if none := c.neither(); len(none) > 0 {
		return c.differences() + "; carried out on neither kernel: " + strings.Join(none, ", ")
	}
	return c.differences()
}

func (c *Comparison) differences() string {
	if len(c.Differences) == 0 {
		return "no difference"
	}
	in := map[string]bool{}
	for _, d := range c.Differences {
		in[d.Scenario] = true
	}
	return fmt.Sprintf("%s in %s", plural(len(c.Differences), "difference"), plural(len(in), "place"))
}

// WriteJSON writes the comparison, and all runs, as indented JSON.
func (c *Comparison) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(c)
}
