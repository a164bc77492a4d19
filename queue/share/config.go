// Package share is a model of drives that share a host's request tags: what each
// of them gets, and what the sharing costs, under the block layer's rule of fair
// shares (hctx_may_queue) and without it. It is a simulation in virtual time, the
// same for the same [Config].
//
// Threads (jobs) keep a number of commands at each drive. A job takes a request
// tag from one sbitmap for all of the host, under the rule, or sleeps in the
// map's wait queues; completions wake those who sleep in batches. CPU time is
// counted: an I/O's own, and that of each cache line that has to come from another
// CPU, which is done once at a time. A completion comes on the CPU that sent the
// command, as an interrupt. What the CPUs, the host adapter and the drives can do
// bounds the IOPS.
//
// What is left out: I/O schedulers, merging, batches of tags, and that a job
// sleeps with what it has plugged. Each number that was put in is a [Parameter].
package share

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"lunlab/queue"
)

// Rule is how tags are shared, and how the device's I/Os are counted.
type Rule struct {
	Name string `json:"name"`
	Says string `json:"says"`
	// Fair: a drive takes no more than its share of the tags, for which each
	// queue counts its requests in a counter that all of its CPUs share.
	Fair bool `json:"fair"`
	// PerCPUCounters: iorequest_cnt and iodone_cnt are per-CPU counters.
	PerCPUCounters bool `json:"percpu_counters"`
}

var rules = []Rule{
	{Name: "fair", Says: "Linux 6.12 as it is: max(ceil(tags / active queues), 4) tags for each drive", Fair: true},
	{Name: "dropped", Says: "no fair shares, and no counter for them (patch 3 of the series of 2026-06-09)"},
	{Name: "series", Says: "dropped, and per-CPU iorequest_cnt and iodone_cnt (patches 3 and 4)", PerCPUCounters: true},
}

// Rules returns all.
func Rules() []Rule { return slices.Clone(rules) }

// LookupRule returns the rule of that name. Its error lists the names there are.
func LookupRule(name string) (Rule, error) {
	names := make([]string, 0, len(rules))
	for _, r := range rules {
		if r.Name == name {
			return r, nil
		}
		names = append(names, r.Name)
	}
	return Rule{}, fmt.Errorf("share: no rule named %q: there are %s", name, strings.Join(names, ", "))
}

// Load is what the drives are, and are given to do.
type Load string

const (
	// Equal: all drives have one speed and one load.
	Equal Load = "equal"
	// Slow: the last drive has a tenth of the speed, and takes ten times as
	// long for a command.
	Slow Load = "slow"
	// Bursts: every second drive has its load in a tenth of the time only.
	Bursts Load = "bursts"
	// Stops: the last drive gets nothing more after a third of the run.
	Stops Load = "stops"
)

// Loads returns all, and LoadSays what each is.
func Loads() []Load { return []Load{Equal, Slow, Bursts, Stops} }

// Says says what the load is.
func (l Load) Says() string {
	return map[Load]string{
		Equal:  "all drives have one speed, and one load without a pause",
		Slow:   "the last drive has a tenth of the others' speed, and takes ten times as long for a command",
		Bursts: "every second drive has its load in bursts, a tenth of the time",
		Stops:  "the last drive gets nothing more after a third of the run; its share is given up after another (see grace)",
	}[l]
}

// Bounds of a run.
const (
	MaxDrives  = 64
	MaxDepth   = 4096
	MaxSpeed   = 10_000_000
	MaxIOs     = 10_000_000
	defaultIOs = 20_000
	// slowness is how much slower the slow drive is; burstTime the parts of
	// the time in one of which a drive has its burst.
	slowness  = 10
	burstTime = 10
)

// Config is what a run needs: the same gives the same run.
type Config struct {
	Rule   Rule `json:"rule"`
	Load   Load `json:"load"`
	Drives int  `json:"drives"`
	// Depth is the commands that the jobs keep at each drive, all together.
	Depth int `json:"depth"`
	// Tags is can_queue, over all hardware queues.
	Tags int `json:"tags"`
	// QueueDepth is each drive's queue_depth. A request has its tag before
	// it asks for it.
	QueueDepth int `json:"queue_depth"`
	// Speed is what a drive can do, in I/Os a second.
	Speed float64 `json:"speed"`
	// IOs says how long a run is: as long as this many would take at the speed
	// of whatever is the narrowest: drives, host adapter, CPUs, or tags. 0 means
	// 20,000, and 400 a drive at least.
	IOs    int    `json:"ios,omitempty"`
	Seed   uint64 `json:"seed"`
	Params Params `json:"-"`
}

// Validate reports each value that is out of its range.
func (c Config) Validate() error {
	var errs []error
	check := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			errs = append(errs, fmt.Errorf("%s %d: want %d to %d", name, v, lo, hi))
		}
	}
	check("drives", c.Drives, 1, MaxDrives)
	check("depth", c.Depth, 1, MaxDepth)
	check("tags", c.Tags, 1, queue.MaxTags)
	check("queue depth", c.QueueDepth, 1, queue.MaxDepth)
	check("ios", c.IOs, 0, MaxIOs)
	if !(c.Speed >= 1 && c.Speed <= MaxSpeed) {
		errs = append(errs, fmt.Errorf("speed %v: want 1 to %d", c.Speed, MaxSpeed))
	}
	if !slices.Contains(Loads(), c.Load) {
		errs = append(errs, fmt.Errorf("load %q: want one of %v", c.Load, Loads()))
	}
	for _, q := range parameters {
		if err := q.check(c.Params); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("share: %w", errors.Join(errs...))
	}
	return nil
}
