package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/queue"
	"lunlab/target/tcmu"
	"lunlab/test/probe"
)

// Event is something that a run tells while it goes on; one field is set.
type Event struct {
	Kernel *Kernel `json:"kernel,omitempty"`
	Step   *Step   `json:"step,omitempty"`
	Result *Result `json:"result,omitempty"`
	Trace  *Trace  `json:"trace,omitempty"`

	// Ask is for the host of a guest, and doesn't leave [RunGuest].
	Ask *Ask `json:"ask,omitempty"`
}

// Step says what is being done, and for which scenario.
type Step struct {
	Scenario string `json:"scenario,omitempty"`
	What     string `json:"what"`
}

// ErrStuck says that a scenario did not end in its time: what it has left in the
// kernel can't be known, so no other is begun there.
var ErrStuck = errors.New("the scenario is stuck in the kernel")

// Options are what a run is told.
type Options struct {
	// Disposable says that a scenario may hang the kernel for good. Those of which
	// the rules say that they do are tried only then.
	Disposable bool

	// Rules names the rules that the kernel is to be held to, where it doesn't
	// show its own: without BTF, all rules fit it. Empty: none are named.
	Rules string

	// VirtualTime says that the guest, which is User-Mode Linux, and what the host
	// serves it run in a time of their own: see [kernel.Clock].
	VirtualTime bool

	// Trace has what the tracepoints say of each scenario emitted.
	Trace bool
}

// runner carries scenarios out on the running kernel.
type runner struct {
	Options
	emit   func(Event)
	engine *tcmu.Engine // nil if no scenario needs it

	host *hostLink // nil if there is none

	ledgers ledgers // of the LUNs of ours that there are

	layout *probe.Layout // of the kernel's structures, found once; nil without a probe
	kmsg   *kmsg
	rules  []queue.Rules
	cpus   int
}

// Run carries the scenarios out on the running kernel, one after another, and
// tells emit of what it does. It needs root and what [Refusals] lists.
//
// A scenario that fails is a result like others. Run's own errors are what keeps
// all from going on; [ErrStuck] is one, after the result of the case that it
// is about.
func Run(ctx context.Context, ss []Scenario, o Options, emit func(Event)) error {
	return (&runner{emit: emit, Options: o}).run(ctx, ss)
}

func (rn *runner) run(ctx context.Context, ss []Scenario) (err error) {
	rn.emit(Event{Step: &Step{What: "look at the kernel"}})
	if err := rn.open(ctx, ss); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rn.close()) }()
	for _, s := range ss {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := rn.one(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// open gets what the scenarios share.
func (rn *runner) open(ctx context.Context, ss []Scenario) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, rn.close())
		}
	}()
	if rn.kmsg, err = openKmsg(); err != nil {
		return err
	}
	if hasHost(ss, TCMLoop) {
		if err := rn.openEngine(ctx); err != nil {
			return err
		}
	}
	if rn.layout, err = probe.LoadLayout(); err != nil && !errors.Is(err, probe.ErrNoBTF) {
		return err
	}
	return rn.detect(err)
}

func (rn *runner) openEngine(ctx context.Context) (err error) {
	if err := tcmu.Prepare(ctx, tcmu.Options{}); err != nil {
		return err
	}
	if rn.engine, err = tcmu.Open(tcmu.Options{}); err != nil {
		return err
	}
	// What a run that was killed has left would be in the way.
	_, err = rn.engine.Cleanup(ctx, loopWWN)
	return err
}

// detect finds the kernel's rules and tells of the kernel. unseen is why nothing of
// it can be seen.
func (rn *runner) detect(unseen error) (err error) {
	found := probe.Detection{Candidates: queue.All()}
	if unseen != nil {
		found.Evidence = []string{fmt.Sprintf("%v: no probe, and all rules fit (--rules names the kernel's)", unseen)}
	} else if found, err = probe.DetectRules(rn.layout); err != nil {
		return err
	}
	if len(found.Candidates) == 0 {
		return fmt.Errorf("the kernel's rules are none that lunlab knows: %s", found)
	}
	if err := rn.told(&found); err != nil {
		return err
	}
	rn.rules = found.Candidates
	if rn.cpus, err = possibleCPUs(); err != nil {
		return err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	k := Kernel{
		Release: unix.ByteSliceToString(u.Release[:]), Version: unix.ByteSliceToString(u.Version[:]), CPUs: rn.cpus, Evidence: found.Evidence,
	}
	for _, r := range rn.rules {
		k.Rules = append(k.Rules, r.Name)
	}
	rn.emit(Event{Kernel: &k})
	return nil
}

// told leaves the rules that were named, if they are among those that fit.
func (rn *runner) told(found *probe.Detection) error {
	if rn.Rules == "" {
		return nil
	}
	i := slices.IndexFunc(found.Candidates, func(r queue.Rules) bool { return r.Name == rn.Rules })
	if i < 0 {
		return fmt.Errorf("the kernel shows that it doesn't have the rules %s: %s", rn.Rules, found)
	}
	if len(found.Candidates) > 1 {
		found.Evidence = append(found.Evidence, rn.Rules+" was named")
	}
	found.Candidates = found.Candidates[i:][:1]
	return nil
}

// possibleCPUs is the number of CPUs that the kernel has room for, which is
// what caps hardware queues: nr_cpu_ids.
func possibleCPUs() (int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return 0, err
	}
	s := strings.TrimSpace(string(b)) // "0-3", or "0"
	last, err := strconv.Atoi(s[strings.LastIndexAny(s, "-,")+1:])
	if err != nil {
		return 0, fmt.Errorf("possible CPUs %q: %w", s, err)
	}
	return last + 1, nil
}

func (rn *runner) close() error {
	var errs []error
	if rn.engine != nil {
		errs = append(errs, rn.engine.Close())
	}
	if rn.kmsg != nil {
		errs = append(errs, rn.kmsg.close())
	}
	return errors.Join(errs...)
}

// one carries one scenario out and emits its result.
func (rn *runner) one(ctx context.Context, s Scenario) error {
	r := &run{runner: rn, scenario: s, Result: Result{Name: s.Name}}
	if rn.VirtualTime {
		if err := alignTime(ctx); err != nil {
			return err
		}
	}
	start := time.Now()
	r.hostsBefore = entries("/sys/class/scsi_host")
	if err := r.openProbe(); err != nil {
		return err
	}
	defer r.closeProbe()
	endTrace, err := r.trace()
	if err != nil {
		return err
	}
	limited, end := r.limit(ctx, s.Timeout, fmt.Errorf("it took over %v", s.Timeout))
	err = s.run(limited, r)
	traceErr := endTrace()
	r.Elapsed = time.Since(start)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	stuck := limited.Err() != nil || errors.Is(err, ErrStuck)
	end()
	switch {
	case r.Verdict == Skipped:
		r.Error = err.Error()
	case err != nil && !errors.Is(err, ErrStuck):
		r.Error = fmt.Sprintf("%s: %v", r.at, err)
	}
	var kerr error
	r.Complaints, kerr = rn.kmsg.complaints()
	r.judge()
	rn.emit(Event{Result: &r.Result})
	if stuck {
		showBlocked()
		return ErrStuck
	}
	return errors.Join(kerr, traceErr)
}

// timerPhase is a multiple of the steps that the kernel's timers, of up to a minute
// and more, end in (LVL_GRAN of kernel/time/timer.c), for HZ 100, 250 and 1000.
const timerPhase = 10240 * time.Millisecond

// alignTime waits until all timers of a scenario will have the same phase in each
// run. Programs aren't the same to the microsecond: they use random numbers.
func alignTime(ctx context.Context) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("clock_gettime: %w", err)
	}
	return sleep(ctx, timerPhase-time.Duration(now.Nano())%timerPhase+timerPhase/2048)
}

// showBlocked has the kernel print the stacks of its blocked tasks to its log
// and console (sysrq w).
func showBlocked() {
	if old, err := os.ReadFile("/proc/sys/kernel/printk"); err == nil {
		os.WriteFile("/proc/sys/kernel/printk", []byte("7"), 0)
		defer os.WriteFile("/proc/sys/kernel/printk", old, 0)
	}
	os.WriteFile("/proc/sysrq-trigger", []byte("w"), 0)
}
