package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lunlab/queue"
)

// Case is what a run needs: the same case gives the same run.
type Case struct {
	Rules queue.Rules `json:"rules"`
	Host  Host        `json:"host"`
	// NoFairShares: a device may take all of the tags that it shares with
	// others, as the series of 2026-06-09 has it.
	NoFairShares bool `json:"no_fair_shares,omitempty"`
	// Seed is of the model's own chances: hints and answering times.
	Seed     uint64   `json:"seed"`
	Plan     Plan     `json:"plan"`
	Schedule Schedule `json:"schedule,omitempty"`
}

// Bounds of a run's steps: of a case, and of one of an explorer's.
const (
	maxSteps     = 10_000_000
	exploreSteps = 500_000
)

// Result is what came of a run.
type Result struct {
	Violations []Violation
	Devices    []DeviceStats // those there were when all had settled
	Steps      int
	Elapsed    time.Duration // virtual
	// Unfinished: the run was ended after too many steps.
	Unfinished bool
	Trace      *Trace
	schedule   Schedule
}

// DeviceStats is what was seen of a device.
type DeviceStats struct {
	Name       string
	Mapped     bool
	MapDepth   int
	MapShift   int
	QueueDepth int
	// Peak is the most commands at the driver; PeakAtDepth since queue_depth
	// last changed.
	Peak, PeakAtDepth int
	// MinToken and MaxToken are of the tokens taken; -1 if none was.
	MinToken, MaxToken int
	// Wrote says whether the last write to queue_depth was accepted.
	Wrote                                    bool
	IORequests, IODone, IOErrors, IOTimeouts int
}

func newStats() DeviceStats { return DeviceStats{MinToken: -1, MaxToken: -1} }

func (d *DeviceStats) token(n int) {
	if d.MinToken < 0 || n < d.MinToken {
		d.MinToken = n
	}
	d.MaxToken = max(d.MaxToken, n)
}

func (d *DeviceStats) arrived(n int) {
	d.Peak, d.PeakAtDepth = max(d.Peak, n), max(d.PeakAtDepth, n)
}

// observe notes what there is at rest.
func (m *model) observe() {
	m.observed = nil
	for _, s := range m.devices {
		if s == nil {
			continue
		}
		d := s.stats
		d.Name, d.QueueDepth = s.name, s.queueDepth
		if d.Mapped = s.budget.mapped(); d.Mapped {
			d.MapDepth, d.MapShift = s.budget.Depth, s.budget.Shift
		}
		d.IORequests, d.IODone, d.IOErrors, d.IOTimeouts = s.iorequests, s.iodone, s.ioerrors, s.iotimeouts
		m.observed = append(m.observed, d)
	}
}

// Validate says what of the case can't be run.
func (c Case) Validate() error {
	if err := c.Host.Limits.Validate(); err != nil {
		return err
	}
	for i, o := range c.Plan {
		if !slices.Contains(OpKinds(), o.Kind) {
			return fmt.Errorf("sim: plan: step %d: no step is named %q", i+1, o.Kind)
		}
		if o.Slot < 0 || o.Slot >= MaxDevices || o.N < 0 || o.CPU < AllCPUs || o.CPU >= max(c.Host.Limits.Queues(), minCPUs) {
			return fmt.Errorf("sim: plan: step %d (%s): out of range", i+1, o)
		}
	}
	return nil
}

// Run runs the case. trace asks for a trace. Its error is [Case.Validate]'s.
func (c Case) Run(trace bool) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	return c.run(how{scheduler: scheduler{made: c.Schedule}, limit: maxSteps, trace: trace}), nil
}

// how says how a case is run.
type how struct {
	scheduler scheduler
	only      *Violation // stop at one like this
	limit     int        // steps
	trace     bool
}

func (c Case) run(h how) Result {
	m := newModel(c.Rules, c.Host, c.Seed)
	m.noFairShares = c.NoFairShares
	m.schedule, m.limit, m.only = h.scheduler, h.limit, h.only
	if h.trace {
		m.trace = &Trace{}
	}
	m.spawn("plan", 0, func(t *task) { m.do(t, c.Plan) })
	m.run(m.idle)
	return Result{
		Violations: m.violations, Devices: m.observed, Steps: m.steps, Elapsed: m.now,
		Unfinished: m.steps >= m.limit, Trace: m.trace, schedule: m.schedule.made,
	}
}

// Explorer looks for broken invariants under one set of rules on one host.
type Explorer struct {
	Rules queue.Rules
	Host  Host
	// NoFairShares: see [Case].
	NoFairShares bool
	// Seed decides all that is by chance.
	Seed uint64
	// Steps is how many steps to look, without those that shrinking takes.
	Steps int
	// Raw leaves findings as they were found: much longer, and sooner there.
	Raw bool
}

// Finding is a broken invariant, and the shortest case found that breaks it.
type Finding struct {
	Violation Violation `json:"violation"`
	Case      Case      `json:"case"`
	Trace     *Trace    `json:"trace,omitempty"`
	// Seed is the explorer's; Run counts its runs from 1.
	Seed uint64 `json:"seed"`
	Run  int    `json:"run"`
}

// Report is what an explorer came to.
type Report struct {
	Rules string `json:"rules"`
	Host  string `json:"host"`
	// NoFairShares: see [Case].
	NoFairShares bool `json:"no_fair_shares,omitempty"`

	Seed  uint64 `json:"seed"`
	Runs  int    `json:"runs"`
	Steps int    `json:"steps"`
	// Unfinished counts the runs that were ended for their length.
	Unfinished int       `json:"unfinished,omitempty"`
	Findings   []Finding `json:"findings"`
}

// Explore runs plans until the steps are used up or ctx ends. Each kind of
// violation is shrunk and reported once. The report depends on nothing but the
// explorer, unless ctx ends. Its error is [Case.Validate]'s, or ctx's.
func (e Explorer) Explore(ctx context.Context) (Report, error) {
	rep := Report{Rules: e.Rules.Name, Host: e.Host.Name, NoFairShares: e.NoFairShares, Seed: e.Seed}
	if err := e.Host.Limits.Validate(); err != nil {
		return rep, err
	}
	rng := rand.New(rand.NewPCG(e.Seed, 0))
	for rep.Steps < e.Steps {
		if err := ctx.Err(); err != nil {
			return rep, err
		}
		rep.Runs++
		c := Case{Rules: e.Rules, Host: e.Host, NoFairShares: e.NoFairShares, Seed: rng.Uint64()}
		c.Plan = newPlan(e.Host, rng)
		odds := []float64{0, 0.01, 0.1, 0.3}[rng.IntN(4)]
		res := c.run(how{scheduler: scheduler{rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), odds: odds}, limit: exploreSteps})
		c.Schedule = res.schedule
		rep.Steps += res.Steps
		if res.Unfinished {
			rep.Unfinished++
		}
		for _, v := range res.Violations {
			if rep.has(v) {
				continue
			}
			f := Finding{Violation: v, Case: c}
			if !e.Raw {
				f = shrink(ctx, c, v)
			}
			f.Seed, f.Run = e.Seed, rep.Runs
			rep.Findings = append(rep.Findings, f)
		}
	}
	return rep, nil
}

func (r Report) has(v Violation) bool {
	for _, f := range r.Findings {
		if f.Violation.same(v) {
			return true
		}
	}
	return false
}
