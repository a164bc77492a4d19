package scenario

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"time"

	"lunlab/test/kernel"
)

// AgentCommand is the subcommand of this program that a guest is told to run,
// with the cases as a JSON argument; see [Agent].
const AgentCommand = "ktest-agent"

// Agent is the guest's side of [RunGuest]: it carries the cases out that are
// in the JSON text, and writes events as JSON lines.
func Agent(ctx context.Context, text string, events func([]byte) error) error {
	var cases []Case
	if err := json.Unmarshal([]byte(text), &cases); err != nil {
		return fmt.Errorf("cases: %w", err)
	}
	var werr error
	err := Run(ctx, cases, true, func(e Event) {
		b, err := json.Marshal(e)
		if err == nil {
			err = events(append(b, '\n'))
		}
		werr = errors.Join(werr, err)
	})
	return errors.Join(err, werr)
}

// RunGuest carries the cases out in guests that it boots: one for all, but a
// new one for the rest after a case that got stuck or took the guest with it.
// Such a case is a result like others, with the console's last lines.
//
// An error is what keeps any case from being carried out.
func RunGuest(ctx context.Context, cfg kernel.Config, cases []Case, emit func(Event)) ([]kernel.Complaint, error) {
	fio, err := exec.LookPath("fio")
	if err != nil {
		return nil, fmt.Errorf("no fio to take into the guest: %w; on Debian and Ubuntu: apt-get install fio", err)
	}
	prog, err := kernel.Program(fio)
	if err != nil {
		return nil, err
	}
	maps.Copy(prog, cfg.Files)
	cfg.Files = prog
	load, carry := modulesOf(cases)
	cfg.Load, cfg.Carry = append(cfg.Load, load...), append(cfg.Carry, carry...)
	cfg.Silence = caseTimeout + 30*time.Second // it would have said that the case is stuck
	var outside []kernel.Complaint
	for len(cases) > 0 {
		g := &guestRun{emit: emit, said: map[string]bool{}}
		err := g.boot(ctx, cfg, cases)
		outside = append(outside, g.outside...)
		if err != nil && (ctx.Err() != nil || g.ended == 0 && g.current == "") {
			return outside, err
		}
		if g.accel != "" {
			cfg.Accel = g.accel // the choice is made, and told, once
		}
		cases = cases[min(g.ended, len(cases)):]
		switch {
		case err == nil && len(cases) > 0:
			return outside, fmt.Errorf("the guest ended with %d configurations to go", len(cases))
		case err == nil || errors.Is(err, errGuestStuck):
			// The case that is stuck has its result.
		case len(cases) == 0:
			return outside, err
		default:
			r := g.lost(cases[0], err)
			emit(Event{Result: &r})
			cases = cases[1:]
		}
	}
	return outside, nil
}

// errGuestStuck is [ErrStuck] in a guest.
var errGuestStuck = errors.New("the guest is stuck")

// ExitStuck is the agent's exit status for [ErrStuck].
const ExitStuck = 3

// guestRun is one guest's run of cases.
type guestRun struct {
	emit    func(Event)
	accel   string
	part    []byte // an event line that has no end yet
	ended   int    // results that came
	current string // the case that is being carried out
	since   time.Time
	at      string
	bad     error

	said    map[string]bool    // complaints that are in a result or in outside
	outside []kernel.Complaint // from before the first case and after the last
}

// boot boots a guest and has it carry the cases out.
func (g *guestRun) boot(ctx context.Context, cfg kernel.Config, cases []Case) error {
	g.emit(Event{Step: &Step{What: "boot"}})
	vm, err := kernel.Boot(ctx, cfg)
	if err != nil {
		return err
	}
	g.accel = vm.Accel
	g.outside = g.news(vm.Complaints())
	defer func() {
		vm.Close()
		if g.current == "" { // else they are the lost case's
			g.outside = append(g.outside, g.news(vm.Complaints())...)
		}
	}()
	text, err := json.Marshal(cases)
	if err != nil {
		return err
	}
	stderr := &limitedBuffer{left: 64 << 10}
	code, err := vm.Run(ctx, []string{"/bin/lunlab", AgentCommand, string(text)}, nil, g, stderr)
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
// console has them with the time in front, a case's own log without.
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
		case e.Step != nil:
			if e.Step.Case != g.current {
				g.current, g.since = e.Step.Case, time.Now()
			}
			g.at = e.Step.What
		case e.Result != nil:
			g.ended++
			g.current = ""
			g.news(e.Result.Complaints)
		}
		if e.Kernel != nil {
			e.Kernel.Accel = g.accel
		}
		g.emit(e)
	}
}

// lost is the result of the case that was being carried out when its guest was
// lost.
func (g *guestRun) lost(c Case, err error) Result {
	r := Result{
		Case: c, Name: c.Name(), Before: noPeak, Lowered: noPeak, Raised: noPeak, LowerTo: c.LowerTo(),
		Verdict: Failed, Error: fmt.Sprintf("%s: %v", g.at, err),
	}
	if g.current != "" {
		r.Elapsed = time.Since(g.since)
	}
	var ge *kernel.GuestError
	if errors.As(err, &ge) {
		r.Complaints = g.news(ge.Complaints)
	}
	return r
}
