package scenario

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"lunlab/queue"
	"lunlab/test/kernel"
)

// AgentCommand is the subcommand of this program that a guest is told to run,
// with the names of scenarios as arguments; see [Agent].
const AgentCommand = "ktest-agent"

// Agent is the guest's side of [RunGuest]: it carries the scenarios out that have
// these names, writes events as JSON lines, and reads answers to what it asks.
func Agent(ctx context.Context, o Options, names []string, events func([]byte) error, answers io.Reader) error {
	var ss []Scenario
	for _, n := range names {
		s, err := lookup(n)
		if err != nil {
			return err
		}
		ss = append(ss, s)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	emit := func(e Event) {
		b, err := json.Marshal(e)
		if err == nil {
			err = events(append(b, '\n'))
		}
		if err != nil {
			cancel(err)
		}
	}
	o.Disposable = true
	rn := &runner{Options: o, emit: emit, host: newHostLink(emit, answers, o.VirtualTime, cancel)}
	return errors.Join(rn.run(ctx, ss), context.Cause(ctx))
}

// RunGuest carries the scenarios out in guests that it boots: one for all, but a
// new one for the rest after a scenario that got stuck or took the guest with it.
// Such a scenario is a result like others, with the console's last lines.
//
// An error is what keeps any scenario from being carried out.
func RunGuest(ctx context.Context, cfg kernel.Config, ss []Scenario, o Options, emit func(Event)) ([]kernel.Complaint, error) {
	files := maps.Clone(cfg.Files)
	if files == nil {
		files = map[string]string{}
	}
	uml, err := kernel.IsUML(cfg.Kernel)
	if err != nil {
		return nil, err
	}
	if uml {
		ss = leaveOut(ss, o, emit)
	}
	if err := takePrograms(files, programsOf(ss)); err != nil {
		return nil, err
	}
	cfg.Files = files
	load, carry := modulesOf(ss)
	cfg.Load, cfg.Carry = append(cfg.Load, load...), append(cfg.Carry, carry...)
	cfg.Optional = append(cfg.Optional, "crc32c_generic") // iscsi_tcp asks for it, or for what newer kernels have
	for _, s := range ss {
		cfg.Silence = max(cfg.Silence, s.Timeout+90*time.Second) // it would have said that it is stuck
	}
	dir, err := os.MkdirTemp("", "lunlab-ktest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var outside []kernel.Complaint
	var rules []queue.Rules // of the kernel, once a guest has found them
	again := ""
	for len(ss) > 0 {
		machine := machineOf(ss[0])
		same := ss
		if i := slices.IndexFunc(ss, func(s Scenario) bool { return machineOf(s) != machine }); i > 0 {
			same = ss[:i]
		}
		of, err := withMachine(cfg, machine, dir)
		if err != nil {
			return outside, err
		}
		g := &guestRun{Options: o, emit: emit, said: map[string]bool{}, rules: rules}
		err = g.boot(ctx, of, same)
		outside, rules = append(outside, g.outside...), g.rules
		if err != nil && (ctx.Err() != nil || g.ended == 0 && g.current == "" && machine == "") {
			return outside, err
		}
		if g.accel != "" {
			cfg.Accel = g.accel // the choice is made, and told, once
		}
		left := len(same) - min(g.ended, len(same))
		ss = ss[len(same)-left:]
		switch {
		case err == nil && left > 0:
			return outside, fmt.Errorf("the guest ended with %d scenarios to go", left)
		case err == nil || errors.Is(err, errGuestStuck):
			// The scenario that is stuck has its result.
		case left == 0:
			return outside, err
		case g.accel == "tcg" && kernel.EmulatorFault(err) && again != ss[0].Name:
			again = ss[0].Name // the next guest tries it once more
		default:
			if g.current == "" && g.rules == nil {
				look := &guestRun{Options: o, emit: emit, said: g.said}
				if look.boot(ctx, cfg, nil) == nil {
					g.rules, rules = look.rules, look.rules
				}
			}
			r := g.lost(ss[0], err)
			emit(Event{Result: &r})
			ss = ss[1:]
		}
	}
	return outside, nil
}

// leaveOut tells of the scenarios that User-Mode Linux can't carry out, and returns
// the others.
func leaveOut(ss []Scenario, o Options, emit func(Event)) []Scenario {
	return slices.DeleteFunc(slices.Clone(ss), func(s Scenario) bool {
		why := ""
		if machineOf(s) != "" {
			why = "it has a host that QEMU emulates"
		} else if c := s.virtIO(); c.Host != "" && c.CanQueue != umlQueueSize {
			why = fmt.Sprintf("User-Mode Linux's virtqueues, and so can_queue, are of %d", umlQueueSize)
		} else if o.VirtualTime && !s.virtual {
			why = "its programs go by the clock, which in virtual time stands still while they run"
		}
		if why != "" {
			r := notRun(s)
			r.Verdict, r.Error = Skipped, why
			emit(Event{Result: &r})
		}
		return why != ""
	})
}

// takePrograms adds programs of the host to a guest's files.
func takePrograms(files map[string]string, programs []program) error {
	for _, p := range programs {
		path, err := p.find()
		if err != nil {
			return fmt.Errorf("no %s to take into the guest: %w; on Debian and Ubuntu: apt-get install %s", p.name, err, p.pkg)
		}
		prog, err := kernel.Program(path)
		if err != nil {
			return err
		}
		maps.Copy(files, prog)
	}
	return nil
}

// errGuestStuck is [ErrStuck] in a guest.
var errGuestStuck = errors.New("the guest is stuck")

// ExitStuck is the agent's exit status for [ErrStuck].
const ExitStuck = 3

// guestRun is one guest's run of scenarios.
type guestRun struct {
	Options
	vm      *kernel.VM
	hosts   *virtioHosts
	emit    func(Event)
	accel   string
	part    []byte // an event line that has no end yet
	ended   int    // results that came
	current string // the scenario that is being carried out
	since   time.Time
	at      string
	bad     error
	rules   []queue.Rules // nil until they are known

	said    map[string]bool    // complaints that are in a result or in outside
	outside []kernel.Complaint // from before the first scenario and after the last
}

// boot boots a guest and has it carry the scenarios out.
func (g *guestRun) boot(ctx context.Context, cfg kernel.Config, ss []Scenario) error {
	g.emit(Event{Step: &Step{What: "boot"}})
	if g.VirtualTime {
		cfg.Clock = kernel.NewClock()
	}
	hosts, err := serveVirtIO(ss, cfg.Clock)
	if err != nil {
		return err
	}
	defer hosts.close()
	cfg.SCSI = append(slices.Clone(cfg.SCSI), hosts.devices...)
	vm, err := kernel.Boot(ctx, cfg)
	if err != nil {
		return err
	}
	g.accel, g.vm, g.hosts = vm.Accel, vm, hosts
	g.outside = g.news(vm.Complaints())
	defer func() {
		vm.Close()
		if g.current == "" { // else they are the lost scenario's
			g.outside = append(g.outside, g.news(vm.Complaints())...)
		}
	}()
	stderr := &limitedBuffer{left: 64 << 10}
	argv := []string{"/bin/lunlab", AgentCommand, "--rules=" + g.Rules, fmt.Sprintf("--virtual-time=%v", g.VirtualTime), fmt.Sprintf("--trace=%v", g.Trace)}
	for _, s := range ss {
		argv = append(argv, s.Name)
	}
	code, err := vm.Talk(ctx, argv, nil, g, stderr)
	switch {
	case err != nil:
		return err
	case g.bad != nil:
		return g.bad
	case code == ExitStuck:
		return errGuestStuck
	case code != 0:
		return fmt.Errorf("in the guest: %s", bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// news returns the complaints that were not reported yet, and notes them. The
// console has them with the time in front, a scenario's own log without.
func (g *guestRun) news(all []kernel.Complaint) []kernel.Complaint {
	var out []kernel.Complaint
	for _, c := range all {
		line := c.Line
		if strings.HasPrefix(line, "[") {
			_, line, _ = strings.Cut(line, "] ")
		}
		if !g.said[line] {
			g.said[line] = true
			out = append(out, c)
		}
	}
	return out
}

// limitedBuffer drops what there is no room left for.
type limitedBuffer struct {
	bytes.Buffer
	left int
}

func (l *limitedBuffer) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	l.Buffer.Write(b[:n])
	return len(b), nil
}

// maxEvent bounds an event's line, in bytes.
const maxEvent = 4 << 20

// Write takes the agent's events.
func (g *guestRun) Write(b []byte) (int, error) {
	if g.bad != nil || len(g.part)+len(b) > maxEvent {
		g.bad = cmp.Or(g.bad, errors.New("an event from the guest is too long"))
		return len(b), nil
	}
	g.part = append(g.part, b...)
	for {
		line, rest, ok := bytes.Cut(g.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		g.part = rest
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			g.bad = fmt.Errorf("event from the guest: %w: %.200q", err, line)
			return len(b), nil
		}
		switch {
		case e.Ask != nil:
			g.reply(*e.Ask)
			continue
		case e.Step != nil:
			if e.Step.Scenario != g.current {
				g.current, g.since = e.Step.Scenario, time.Now()
			}
			g.at = e.Step.What
		case e.Result != nil:
			g.ended++
			g.current = ""
			g.news(e.Result.Complaints)
		}
		if e.Kernel != nil {
			e.Kernel.Accel, e.Kernel.VirtualTime = g.accel, g.VirtualTime
			g.note(e.Kernel.Rules)
		}
		g.emit(e)
	}
}

// note notes the kernel's rules.
func (g *guestRun) note(names []string) {
	g.rules = nil
	for _, n := range names {
		if r, err := queue.Lookup(n); err == nil {
			g.rules = append(g.rules, r)
		}
	}
}

// reply does what the guest asks. A guest that can't be told is one that is lost.
func (g *guestRun) reply(a Ask) {
	b, err := json.Marshal(g.hosts.answer(a))
	if err == nil {
		err = g.vm.Input(append(b, '\n'))
	}
	if err != nil {
		g.bad = fmt.Errorf("answer the guest: %w", err)
	}
}

// notRun is the result of a scenario before it is known why it was not carried out.
func notRun(s Scenario) Result {
	r := Result{Name: s.Name}
	if c := s.limits; c.Host != "" {
		r.LimitsResult = &LimitsResult{Case: c, LowerTo: c.LowerTo(), Before: noPeak, Lowered: noPeak, Raised: noPeak}
	}
	return r
}

// lost is the result of the scenario that was being carried out when its guest
// was lost, or for which it did not boot.
func (g *guestRun) lost(s Scenario, err error) Result {
	r := notRun(s)
	var ge *kernel.GuestError
	if errors.As(err, &ge) {
		r.Complaints = g.news(ge.Complaints)
	}
	switch {
	case g.current != "":
		r.Elapsed = time.Since(g.since)
	case ge != nil && ge.Late && r.LimitsResult != nil && g.scanHangs(s.limits):
		// The disk is there from the start, and the kernel waits for its scan.
		r.LowerTo, r.MapPredicted, r.MapObserved = 0, scanHangs, scanHangs
		r.check(lunScan, "hangs", "hangs", "and the boot with it: "+ge.What)
		r.Complaints = slices.DeleteFunc(r.Complaints, func(c kernel.Complaint) bool { return c.Kind == "hung task" })
		r.judge()
		return r
	}
	r.Error = fmt.Sprintf("%s: %v", cmp.Or(g.at, "boot"), err)
	r.judge()
	return r
}

// scanHangs says whether all rules that the kernel may have say that the scan of
// the case's LUN hangs.
func (g *guestRun) scanHangs(c Case) bool {
	return len(g.rules) > 0 && !slices.ContainsFunc(g.rules, func(r queue.Rules) bool {
		p, err := r.Predict(c.Limits, 0)
		return err != nil || !p.Stuck
	})
}
