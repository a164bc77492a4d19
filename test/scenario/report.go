package scenario

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"lunlab/test/kernel"
)

// Kernel is the kernel that was looked at.
type Kernel struct {
	Release string `json:"release"`
	Version string `json:"version"`
	CPUs    int    `json:"cpus"`
	Accel   string `json:"accel,omitempty"` // "kvm" or "tcg"; empty on the running kernel

	// Rules are the rule sets that fit what the kernel shows, and Evidence
	// what that was. Several fit where they can't be told apart.
	Rules    []string `json:"rules"`
	Evidence []string `json:"evidence,omitempty"`
}

// Report is a whole run.
type Report struct {
	Kernel  Kernel    `json:"kernel"`
	Started time.Time `json:"started"`
	// Elapsed is the run's time, the boot included.
	Elapsed time.Duration `json:"elapsed_ns"`
	Results []Result      `json:"results"`
	// Complaints are what the kernel complained of outside the cases, while it
	// booted and powered off.
	Complaints []kernel.Complaint `json:"complaints,omitempty"`

	// Error is why the run ended before its time, and NotRun names the cases
	// that it didn't come to.
	Error  string   `json:"error,omitempty"`
	NotRun []string `json:"not_run,omitempty"`
}

// End ends the report of a run that had these cases, and err as its outcome.
func (r *Report) End(cases []Case, err error) {
	r.Elapsed = time.Since(r.Started)
	if err != nil {
		r.Error = err.Error()
	}
	for _, c := range cases {
		if !slices.ContainsFunc(r.Results, func(res Result) bool { return res.Name == c.Name() }) {
			r.NotRun = append(r.NotRun, c.Name())
		}
	}
}

// The exit statuses of a run.
const (
	ExitAsPredicted = 0
	ExitDiffers     = 1
	ExitCouldNotRun = 2
)

// ExitStatus is 0 if all was as predicted, 1 if something differs, 2 if a case
// could not be carried out. Skipped cases don't count, if there are others.
func (r *Report) ExitStatus() int {
	status := ExitAsPredicted
	if len(r.Complaints) > 0 {
		status = ExitDiffers
	}
	skipped := 0
	for _, res := range r.Results {
		switch res.Verdict {
		case Failed:
			return ExitCouldNotRun
		case Differs:
			status = ExitDiffers
		case Skipped:
			skipped++
		}
	}
	if r.Error != "" || len(r.NotRun) > 0 || len(r.Results) == skipped {
		return ExitCouldNotRun
	}
	return status
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	if len(r.Results) == 0 {
		return nil // Error has it all
	}
	how := "the running kernel"
	if r.Kernel.Accel != "" {
		how = "in QEMU, " + strings.ToUpper(r.Kernel.Accel)
	}
	fmt.Fprintf(w, "kernel   %s %s (%s, %d CPUs)\n", r.Kernel.Release, r.Kernel.Version, how, r.Kernel.CPUs)
	fmt.Fprintf(w, "rules    %s\n", strings.Join(r.Kernel.Rules, " or "))
	for _, e := range r.Kernel.Evidence {
		fmt.Fprintf(w, "         %s\n", e)
	}
	fmt.Fprintln(w)

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\thw\tcan_\tcmd_per\tqueue\tbudget map\tbudget map\tlowered\tmost in flight, target (device)\t\t\t4 KiB\t\t")
	fmt.Fprintln(t, "host\tqueues\tqueue\t_lun\tdepth\tpredicted\tobserved\tto\tat first\tlowered\traised\tread IOPS\tverdict\t")
	for i := range r.Results {
		r.Results[i].row(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var notes []string
	for i := range r.Results {
		res := &r.Results[i]
		if res.Error != "" {
			notes = append(notes, res.Name+": "+strings.ReplaceAll(res.Error, "\n", "\n    "))
			continue
		}
		for _, d := range res.Differences() {
			notes = append(notes, res.Name+": "+d)
		}
	}
	notes = append(notes, r.outside()...)
	if len(notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, n := range notes {
		fmt.Fprintln(w, "! "+n)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", r.Summary())
	return err
}

func (res *Result) row(w io.Writer) {
	c := res.Case
	host := c.Host
	if c.HostTagset {
		host += ", host-wide tags"
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", host, c.HWQueues, c.CanQueue, c.CmdPerLUN,
		number(res.QueueDepth), dash(res.MapPredicted), dash(res.MapObserved), res.lowered(),
		res.Before, res.Lowered, res.Raised, number(int(res.IOPS)), res.Verdict)
}

func (res *Result) lowered() string {
	if res.LowerErr != "" {
		return fmt.Sprintf("%d: %s", res.LowerTo, res.LowerErr)
	}
	return number(res.LowerTo)
}

// String is "target (device)"; a witness that wasn't there is left out.
func (p Peak) String() string {
	switch {
	case p.Target > 0 && p.Device > 0:
		return fmt.Sprintf("%d (%d)", p.Target, p.Device)
	case p.Device > 0:
		return fmt.Sprintf("- (%d)", p.Device)
	}
	return number(p.Target)
}

func number(n int) string {
	if n <= 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Summary is the outcome in one line.
func (r *Report) Summary() string {
	n := map[string]int{}
	for _, res := range r.Results {
		n[res.Verdict]++
	}
	s := fmt.Sprintf("%d of %d configurations as predicted", n[AsPredicted], len(r.Results)+len(r.NotRun))
	if n[Differs] > 0 {
		s += fmt.Sprintf(", %d differ", n[Differs])
	}
	if n[Failed] > 0 {
		s += fmt.Sprintf(", %d could not be carried out", n[Failed])
	}
	if n[Skipped] > 0 {
		s += fmt.Sprintf(", %d skipped", n[Skipped])
	}
	if len(r.NotRun) > 0 {
		s += fmt.Sprintf(", %d not run", len(r.NotRun))
	}
	return s + fmt.Sprintf(", in %.0f s", r.Elapsed.Seconds())
}

// outside are the complaints that are no case's, a line each.
func (r *Report) outside() []string {
	var out []string
	for _, c := range r.Complaints {
		out = append(out, fmt.Sprintf("kernel %s: %s", c.Kind, c.Line))
	}
	return out
}

// Take adds what an event says to the report.
func (r *Report) Take(e Event) {
	switch {
	case e.Kernel != nil:
		r.Kernel = *e.Kernel
	case e.Result != nil:
		r.Results = append(r.Results, *e.Result)
	}
}
