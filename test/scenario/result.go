package scenario

import (
	"fmt"
	"strings"
	"time"

	"lunlab/test/kernel"
)

// Check is one thing that was predicted, or that has to hold, and looked at.
type Check struct {
	What      string `json:"what"`
	Predicted string `json:"predicted"`
	Observed  string `json:"observed"`
	OK        bool   `json:"ok"`
	AtLeast   bool   `json:"at_least,omitempty"` // more than Predicted is right, too
	Why       string `json:"why,omitempty"`      // the rule that the prediction comes from
}

func (c Check) String() string {
	s := fmt.Sprintf("%s: predicted %s, observed %s", c.What, c.Predicted, c.Observed)
	if c.Why != "" {
		s += " (" + c.Why + ")"
	}
	return s
}

// The verdicts on a scenario.
const (
	AsPredicted = "as predicted"
	Differs     = "differs"
	Failed      = "failed"  // it could not be carried out
	Skipped     = "skipped" // on purpose: see Error
)

// Peak is the most commands in flight at once, as two witnesses saw it. -1 is
// where a witness wasn't there.
type Peak struct {
	Target int `json:"target"` // counted where the commands are executed
	Device int `json:"device"` // counted in the kernel, by the probe
}

var noPeak = Peak{Target: -1, Device: -1}

// Fact is something that was seen and is neither right nor wrong.
type Fact struct {
	What  string `json:"what"`
	Value string `json:"value"`
}

// Result is what became of a scenario.
type Result struct {
	Name string `json:"name"`

	*LimitsResult `json:"limits,omitempty"` // of a limits scenario

	Facts []Fact `json:"facts,omitempty"`
	// Timeline is nil where nothing was watched that could be drawn.
	Timeline *Timeline     `json:"timeline,omitempty"`
	Elapsed  time.Duration `json:"elapsed_ns"`

	Checks     []Check            `json:"checks"`
	Complaints []kernel.Complaint `json:"complaints,omitempty"`
	Verdict    string             `json:"verdict"`
	Error      string             `json:"error,omitempty"` // for Failed: the step and what went wrong; for Skipped: why
	Hang       *Hang              `json:"hang,omitempty"`  // of one that didn't end in its time, or stood still
}

// LimitsResult is what a limits scenario saw.
type LimitsResult struct {
	Case Case `json:"case"`

	// Disk is the block device that the case had, Device its host:channel:id:lun.
	Disk   string `json:"disk,omitempty"`
	Device string `json:"device,omitempty"`

	QueueDepth int `json:"queue_depth"` // at first
	LowerTo    int `json:"lower_to"`    // 0: nothing was lowered
	// LowerErr is the error that the kernel answered the lowered depth with.
	LowerErr string `json:"lower_error,omitempty"`

	// The budget map: "allocated", "elided", or "scan hangs" for a device that
	// the kernel never finishes to scan.
	MapPredicted string `json:"map_predicted"`
	MapObserved  string `json:"map_observed"`

	// Most in flight at the first depth, after it was lowered, and after it
	// was raised again.
	Before  Peak `json:"before"`
	Lowered Peak `json:"lowered"`
	Raised  Peak `json:"raised"`

	IOPS float64 `json:"iops"` // 4 KiB random read, nothing held
	// Latency is of the same reads.
	Latency *Latency `json:"latency,omitempty"`
}

// fact records something that was seen.
func (r *Result) fact(what string, value any) {
	r.Facts = append(r.Facts, Fact{What: what, Value: fmt.Sprint(value)})
}

// check records a check that holds if both are the same.
func (r *Result) check(what string, predicted, observed any, why string) {
	p, o := fmt.Sprint(predicted), fmt.Sprint(observed)
	r.Checks = append(r.Checks, Check{What: what, Predicted: p, Observed: o, OK: p == o, Why: why})
}

// judge sets the verdict from the checks.
func (r *Result) judge() {
	switch {
	case r.Verdict == Skipped:
	case r.Error != "":
		r.Verdict = Failed
	case len(r.Differences()) > 0:
		r.Verdict = Differs
	default:
		r.Verdict = AsPredicted
	}
}

// Differences returns what was not as predicted, a line each.
func (r *Result) Differences() []string {
	var d []string
	for _, c := range r.Checks {
		if !c.OK {
			d = append(d, c.String())
		}
	}
	for _, c := range r.Complaints {
		d = append(d, fmt.Sprintf("kernel %s: %s", c.Kind, strings.TrimSpace(c.Line)))
	}
	return d
}
