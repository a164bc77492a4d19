package scenario

import (
	"errors"
	"fmt"
	"io"
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
	Accel   string `json:"accel,omitempty"` // "kvm", "tcg" or "uml"; empty on the running kernel

	// VirtualTime says that time passed only when nobody had anything to do.
	VirtualTime bool `json:"virtual_time,omitempty"`

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
	// Complaints are what the kernel complained of outside the scenarios, while it
	// booted and powered off.
	Complaints []kernel.Complaint `json:"complaints,omitempty"`

	// Repeat is how often each scenario was to run, 0 for once; Seed is of the
	// shuffle that their order comes from, 0 for none.
	Repeat int    `json:"repeat,omitempty"`
	Seed   uint64 `json:"shuffle_seed,omitempty"`

	// Error is why the run ended before its time, and NotRun names the scenarios
	// that it didn't come to.
	Error  string   `json:"error,omitempty"`
	NotRun []string `json:"not_run,omitempty"`

	// Console is what the guest printed, or its beginning and its end.
	Console string `json:"-"`
}

// End ends the report of a run that had these scenarios, and err as its outcome.
func (r *Report) End(ss []Scenario, err error) {
	r.Elapsed = time.Since(r.Started)
	if err != nil {
		r.Error = err.Error()
	}
	ended := map[string]int{}
	for _, res := range r.Results {
		ended[res.Name]++
	}
	for _, s := range ss {
		if ended[s.Name]--; ended[s.Name] < 0 {
			r.NotRun = append(r.NotRun, s.Name)
		}
	}
}

// The exit statuses of a run.
const (
	ExitAsPredicted = 0
	ExitDiffers     = 1
	ExitCouldNotRun = 2
)

// ExitStatus is 0 if all was as predicted, 1 if something differs, 2 if a scenario
// could not be carried out. Skipped ones don't count, if there are others.
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
	fmt.Fprintf(w, "kernel   %s %s (%s)\n", r.Kernel.Release, r.Kernel.Version, r.Kernel.Where())
	fmt.Fprintf(w, "rules    %s\n", strings.Join(r.Kernel.Rules, " or "))
	for _, e := range r.Kernel.Evidence {
		fmt.Fprintf(w, "         %s\n", e)
	}
	if r.Seed != 0 {
		fmt.Fprintf(w, "order    --shuffle %d\n", r.Seed)
	}
	rows := r.rows()
	if err := errors.Join(writeLimits(w, rows), writeOthers(w, rows)); err != nil {
		return err
	}
	found := r.findings()
	if len(found) > 0 {
		fmt.Fprintln(w)
	}
	for _, f := range found {
		if f.Scenario != "" {
			f.Scenario += ": "
		}
		fmt.Fprintf(w, "! %s%s\n", f.Scenario, strings.ReplaceAll(f.Text, "\n", "\n    "))
	}
	_, err := fmt.Fprintf(w, "\n%s\n", r.Summary())
	return err
}

// Where says what runs the kernel, and on how many CPUs.
func (k Kernel) Where() string {
	how := "the running kernel"
	switch {
	case k.Accel == kernel.UML && k.VirtualTime:
		how = "User-Mode Linux in virtual time"
	case k.Accel == kernel.UML:
		how = "User-Mode Linux"
	case k.Accel != "":
		how = "in QEMU, " + strings.ToUpper(k.Accel)
	}
	return how + ", " + plural(k.CPUs, "CPU")
}

// finding is something that isn't as it should be.
type finding struct {
	Scenario string // empty for the kernel as a whole
	Text     string
}

// findings are all that was not as predicted, and what could not be carried out.
func (r *Report) findings() (found []finding) {
	for _, o := range r.rows() {
		found = append(found, o.findings()...)
	}
	for _, c := range r.outside() {
		found = append(found, finding{Text: c})
	}
	return found
}

// writeLimits writes the table of the limits scenarios.
func writeLimits(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	begun := false
	for _, o := range rows {
		if o.LimitsResult == nil {
			continue
		}
		if !begun {
			begun = true
			fmt.Fprintln(t, "\n\thw\tcan_\tcmd_per\tqueue\tbudget\tmap:\tlowered\tmost\tin flight:\t\t4 KiB\t\t")
			fmt.Fprintln(t, "host\tqueues\tqueue\t_lun\tdepth\tpredicted\tobserved\tto\tat first\tlowered\traised\tIOPS\tverdict\t")
		}
		o.write(t)
	}
	return t.Flush()
}

// write writes the row of a limits scenario.
func (o *row) write(w io.Writer) {
	res, c := o.Result, o.Case
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.title(), c.Queues(), c.CanQueue, c.CmdPerLUN,
		number(res.QueueDepth), dash(res.MapPredicted), dash(res.MapObserved), res.lowered(),
		res.Before, res.Lowered, res.Raised, number(int(res.IOPS)), o.verdict)
}

// writeOthers writes the table of the scenarios that aren't about limits.
func writeOthers(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	begun := false
	for _, o := range rows {
		if o.LimitsResult != nil {
			continue
		}
		if !begun {
			begun = true
			fmt.Fprintln(t, "\nscenario\tverdict\ttook\twhat was seen")
		}
		var facts []string
		for _, f := range o.Facts {
			facts = append(facts, f.What+" "+f.Value)
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f s\t%s\n", o.Name, o.verdict, o.Elapsed.Seconds(), strings.Join(facts, ", "))
	}
	return t.Flush()
}

func (res *Result) lowered() string {
	if res.LowerErr != "" {
		return fmt.Sprintf("%d: %s", res.LowerTo, res.LowerErr)
	}
	return number(res.LowerTo)
}

// String is one number where the witnesses agree, or only one was there, and
// else "target (kernel)".
func (p Peak) String() string {
	if p.Target >= 0 && p.Device >= 0 && p.Target != p.Device {
		return fmt.Sprintf("%d (%d)", p.Target, p.Device)
	}
	return number(max(p.Target, p.Device))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
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
	flaky := 0
	rows := r.rows()
	names := map[string]bool{}
	for _, o := range rows {
		names[o.Name] = true
		if o.flaky() {
			flaky++
		} else {
			n[o.Verdict]++
		}
	}
	for _, name := range r.NotRun {
		names[name] = true
	}
	s := fmt.Sprintf("%d of %s as predicted", n[AsPredicted], plural(len(names), "scenario"))
	if r.Repeat > 1 {
		s += fmt.Sprintf(" in each of %d runs", r.Repeat)
	}
	switch n[Differs] {
	case 0:
	case 1:
		s += ", 1 differs"
	default:
		s += fmt.Sprintf(", %d differ", n[Differs])
	}
	if flaky > 0 {
		s += fmt.Sprintf(", %d not the same each time", flaky)
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

// outside are the complaints that are no scenario's, a line each.
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
