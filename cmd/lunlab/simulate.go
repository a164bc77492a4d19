package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lunlab/queue"
	"lunlab/queue/share"
	"lunlab/queue/sim"
)

// simulation is what the flags of simulate say.
type simulation struct {
	rules, hosts []string
	seed         uint64
	steps        int
	time         time.Duration
	json, list   bool
	quiet        bool
	noFairShares bool
	custom       sim.Host
	sharing      sharing
}

func simulateCommand() *cobra.Command {
	var s simulation
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Run known kernels' command queueing as a model, and look for what breaks",
		Long: `Run a model of what Linux does between a request and a SCSI host's driver (tags,
budget maps, dispatch and restarts, BUSY and TASK SET FULL, depth changes, scan
and removal, error handling, libata's command slots), under the rules of each
known kernel, on hosts with the limits of known drivers. No kernel is touched.

A seeded scheduler interleaves CPUs at the kernel's atomic steps, in virtual
time. The same invariants are checked for all rules: see --list. By default each
set of rules runs on each host, and a table says which invariants were broken
("." none). With one set of rules, or one host, each finding is shown too: the
shortest plan found that breaks the invariant, and the trace of it. The same
seed, steps and version give the same output, byte for byte; --time doesn't.

A host is a preset, or one of your own: --can-queue and the flags beside it
start from the preset that --host names (tcm_loop if none).

With --drives it is another model: drives that share the request tags of one host,
under the block layer's fair shares (hctx_may_queue) and without them, as a series
of 2026 proposes. It counts CPU time and the moves of cache lines, and says for each
rule IOPS, how evenly the drives got them, latencies and tags in use; for several
numbers of drives or depths, which rule wins where. --can-queue is the tags (1024),
--cmd-per-lun the drives' queue_depth (no bound). What was assumed, and where it is
from, is in --list, and can be changed with --set.

Exit status: 0 if nothing was broken, 1 if something was, 2 if it couldn't run, or
if --time was over before all had run and nothing was broken till then.`,
		Example: `  lunlab simulate
  lunlab simulate --rules v3 --host ahci
  lunlab simulate --rules 6.12,v4 --host tcm_loop --can-queue 8192 --cmd-per-lun 8192
  lunlab simulate --rules v3 --host mvsas --seed 7 --json
  lunlab simulate --list
  lunlab simulate --drives 16 --depth 128 --load slow
  lunlab simulate --drives 1..64 --depth 1..256 --speed 1e6 --set spread=0.2 --svg map.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	f := c.Flags()
	s.sharing.flags(c)
	f.StringSliceVar(&s.rules, "rules", nil, "only these rules, by name (default: all; with --drives: fair,series)")
	f.StringSliceVar(&s.hosts, "host", nil, "only these hosts, by name (default: all)")
	f.Uint64Var(&s.seed, "seed", 1, "what decides all that is by chance")
	f.BoolVar(&s.noFairShares, "no-fair-shares", false, "devices take tags without hctx_may_queue, whatever the rules (with --drives: --rules dropped)")
	f.IntVar(&s.steps, "steps", 0, "steps to look, for each set of rules on each host (default: 400000 for the table, 2000000 for one)")
	f.DurationVar(&s.time, "time", 0, "end after this time, however far it is (0: don't)")
	f.BoolVar(&s.json, "json", false, "print JSON")
	f.BoolVar(&s.list, "list", false, "list rules, hosts and invariants")
	f.BoolVarP(&s.quiet, "quiet", "q", false, "show no progress")
	l := &s.custom.Limits
	f.IntVar(&l.CanQueue, "can-queue", 0, "commands the host takes at once, in each hardware queue or in all")
	f.IntVar(&l.CmdPerLUN, "cmd-per-lun", 0, "queue depth of a new device")
	f.IntVar(&l.HWQueues, "hw-queues", 0, "hardware queues")
	f.BoolVar(&l.HostTagset, "host-tagset", false, "all hardware queues share one set of tags")
	f.BoolVar(&l.NeedsBudgetToken, "needs-budget-token", false, "the driver uses the budget token")
	f.IntVar(&l.ConfiguredDepth, "configured-depth", 0, "queue depth that device_configure sets")
	return c
}

// maxSimulatedQueues bounds hardware queues: each is work in every step.
const maxSimulatedQueues = 256

// own puts the limits that were given as flags over a host's.
func (s *simulation) own(cmd *cobra.Command, h sim.Host) sim.Host {
	given := false
	set := func(flag string, to func()) {
		if cmd.Flags().Changed(flag) {
			given = true
			to()
		}
	}
	l, own := &h.Limits, s.custom.Limits
	set("can-queue", func() { l.CanQueue = own.CanQueue })
	set("cmd-per-lun", func() { l.CmdPerLUN = own.CmdPerLUN })
	set("hw-queues", func() { l.HWQueues = own.HWQueues })
	set("host-tagset", func() { l.HostTagset = own.HostTagset })
	set("needs-budget-token", func() { l.NeedsBudgetToken = own.NeedsBudgetToken })
	set("configured-depth", func() { l.ConfiguredDepth, l.Configures = own.ConfiguredDepth, true })
	if given {
		h.Name += "*"
		h.Title += ", with limits of your own"
	}
	return h
}

// chosen is the rules and hosts to run.
func (s *simulation) chosen(cmd *cobra.Command) ([]queue.Rules, []sim.Host, error) {
	rules, hosts := queue.All(), sim.Hosts()
	if len(s.rules) > 0 {
		rules = nil
		for _, n := range s.rules {
			r, err := queue.Lookup(n)
			if err != nil {
				return nil, nil, err
			}
			rules = append(rules, r)
		}
	}
	own := false
	for _, n := range []string{"can-queue", "cmd-per-lun", "hw-queues", "host-tagset", "needs-budget-token", "configured-depth"} {
		own = own || cmd.Flags().Changed(n)
	}
	if own && len(s.hosts) == 0 {
		s.hosts = []string{"tcm_loop"}
	}
	if len(s.hosts) > 0 {
		hosts = nil
		for _, n := range s.hosts {
			h, err := sim.LookupHost(n)
			if err != nil {
				return nil, nil, err
			}
			h = s.own(cmd, h)
			if err := h.Limits.Validate(); err != nil {
				return nil, nil, err
			}
			if n := h.Limits.Queues(); n > maxSimulatedQueues {
				return nil, nil, fmt.Errorf("%d hardware queues: the model takes %d at most", n, maxSimulatedQueues)
			}
			if n := h.Limits.HostMax(); n > queue.MaxTags*4 {
				return nil, nil, fmt.Errorf("%d request tags: the model takes %d at most", n, queue.MaxTags*4)
			}
			hosts = append(hosts, h)
		}
	}
	return rules, hosts, nil
}

func (s *simulation) run(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	if s.list {
		if s.json {
			return encodeJSON(out, simulationList())
		}
		return listSimulation(out)
	}
	if cmd.Flags().Changed("drives") {
		return s.runSharing(cmd)
	}
	for _, n := range sharingFlags {
		if cmd.Flags().Changed(n) {
			return fmt.Errorf("--%s is for --drives", n)
		}
	}
	if s.time < 0 {
		return fmt.Errorf("--time %v: want 0 or more", s.time)
	}
	rules, hosts, err := s.chosen(cmd)
	if err != nil {
		return err
	}
	detail := len(rules) == 1 || len(hosts) == 1
	if s.steps == 0 {
		s.steps = 400_000
		if len(rules)*len(hosts) == 1 {
			s.steps = 2_000_000
		}
	}
	if s.steps < 0 {
		return fmt.Errorf("--steps %d: want 1 or more", s.steps)
	}
	var explorers []sim.Explorer
	for _, h := range hosts {
		for _, r := range rules {
			explorers = append(explorers, sim.Explorer{Rules: r, Host: h, NoFairShares: s.noFairShares, Seed: s.seed, Steps: s.steps, Raw: !detail && !s.json})
		}
	}
	ctx := cmd.Context()
	if s.time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.time)
		defer cancel()
	}
	reports, err := exploreAll(ctx, explorers, s.meter(cmd.ErrOrStderr(), len(explorers)))
	if err != nil && (s.time == 0 || !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	broken, missing := false, 0
	for _, r := range reports {
		broken = broken || len(r.Findings) > 0
		if r.Runs == 0 {
			missing++
		}
	}
	if s.json {
		err = encodeJSON(out, reports)
	} else {
		err = printReports(out, rules, hosts, reports, detail)
	}
	if err != nil {
		return err
	}
	switch {
	case broken:
		return exitStatus(1)
	case missing > 0:
		return fmt.Errorf("%d of %d not run: --time %v was over", missing, len(reports), s.time)
	}
	return nil
}

func encodeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// meter shows how many are done, once a run takes two seconds.
func (s *simulation) meter(w io.Writer, of int) func(done int) {
	start := time.Now()
	shown := start.Add(time.Second)
	terminal := isTerminal(w)
	return func(done int) {
		now := time.Now()
		switch {
		case s.quiet:
		case terminal && now.Sub(start) > 2*time.Second && done < of:
			fmt.Fprintf(w, "\r\x1b[K%d/%d  %.0f s", done, of, now.Sub(start).Seconds())
			shown = now
		case terminal && shown.After(start.Add(time.Second)):
			fmt.Fprint(w, "\r\x1b[K")
		case !terminal && now.Sub(shown) > 5*time.Second && done < of:
			fmt.Fprintf(w, "%d/%d\n", done, of)
			shown = now
		}
	}
}

// exploreAll runs the explorers on all CPUs. The reports are in the explorers'
// order, also when ctx ends before all are done.
func exploreAll(ctx context.Context, explorers []sim.Explorer, meter func(int)) ([]sim.Report, error) {
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		done int
		errs []error
	)
	reports := make([]sim.Report, len(explorers))
	next := make(chan int)
	for range min(runtime.GOMAXPROCS(0), len(explorers)) {
		wg.Go(func() {
			for i := range next {
				r, err := explorers[i].Explore(ctx)
				mu.Lock()
				reports[i] = r
				if err != nil {
					errs = append(errs, err)
				}
				done++
				meter(done)
				mu.Unlock()
			}
		})
	}
	for i := range explorers {
		next <- i
	}
	close(next)
	wg.Wait()
	return reports, errors.Join(errs...)
}

// named is a set of rules, or an invariant, in the list.
type named struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases,omitempty"`
	Says    string   `json:"says"`
	Notes   []string `json:"notes,omitempty"`
}

type simulationLists struct {
	Rules      []named           `json:"rules"`
	Hosts      []sim.Host        `json:"hosts"`
	Invariants []named           `json:"invariants"`
	Sharing    []share.Rule      `json:"sharing_rules"`
	Loads      []named           `json:"loads"`
	Parameters []share.Parameter `json:"parameters"`
}

func simulationList() simulationLists {
	l := simulationLists{Hosts: sim.Hosts(), Sharing: share.Rules(), Parameters: share.Parameters()}
	for _, load := range share.Loads() {
		l.Loads = append(l.Loads, named{Name: string(load), Says: load.Says()})
	}
	for _, r := range queue.All() {
		l.Rules = append(l.Rules, named{Name: r.Name, Aliases: r.Aliases, Says: r.Title, Notes: r.Notes})
	}
	for _, i := range sim.Invariants() {
		l.Invariants = append(l.Invariants, named{Name: i.Name, Says: i.Says})
	}
	return l
}

func listSimulation(w io.Writer) error {
	list := simulationList()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULES\talso")
	for _, r := range list.Rules {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", r.Name, strings.Join(r.Aliases, ","), r.Says)
	}
	fmt.Fprintln(t, "\nHOSTS\tqueues/can_queue/cmd_per_lun")
	for _, h := range list.Hosts {
		l := h.Limits
		limits := fmt.Sprintf("%d/%d/%d", l.HWQueues, l.CanQueue, l.CmdPerLUN)
		if l.HostTagset {
			limits += " host-wide"
		}
		if l.ConfiguredDepth > 0 {
			limits += fmt.Sprintf(", configured %d", l.ConfiguredDepth)
		}
		title := h.Title
		if h.Note != "" {
			title += " (" + h.Note + ")"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", h.Name, limits, title)
	}
	fmt.Fprintln(t, "\nINVARIANTS")
	for _, i := range list.Invariants {
		fmt.Fprintf(t, "  %s\t%s\n", i.Name, i.Says)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	listSharing(t)
	return t.Flush()
}

// printReports prints the table, and each finding if detail is asked for. The
// reports are host by host.
func printReports(w io.Writer, rules []queue.Rules, hosts []sim.Host, reports []sim.Report, detail bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "HOST")
	for _, r := range rules {
		fmt.Fprintf(t, "\t%s", r.Name)
	}
	fmt.Fprintln(t)
	for i, h := range hosts {
		fmt.Fprint(t, h.Name)
		for j := range rules {
			fmt.Fprintf(t, "\t%s", cell(reports[i*len(rules)+j]))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if !detail {
		shares := ""
		if reports[0].NoFairShares {
			shares = ", no fair shares"
		}
		_, err := fmt.Fprintf(w, "\nseed %d%s; . nothing broken, - not run. What an invariant says: --list. How one is broken: --rules and --host.\n", reports[0].Seed, shares)
		return err
	}
	for _, r := range reports {
		for _, f := range r.Findings {
			if err := printFinding(w, r, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// cell is a report in short: the invariants that were broken, in their order.
func cell(r sim.Report) string {
	if r.Runs == 0 {
		return "-"
	}
	var names []string
	for _, i := range sim.Invariants() {
		for _, f := range r.Findings {
			if f.Violation.Invariant == i {
				names = append(names, i.Name)
				break
			}
		}
	}
	if len(names) == 0 {
		return "."
	}
	return strings.Join(names, ",")
}

func printFinding(w io.Writer, r sim.Report, f sim.Finding) error {
	steps := make([]string, 0, len(f.Case.Plan))
	for _, o := range f.Case.Plan {
		steps = append(steps, o.String())
	}
	fmt.Fprintf(w, "\n%s on %s, seed %d, run %d: %s\n", r.Rules, r.Host, f.Seed, f.Run, f.Violation.Invariant.Name)
	fmt.Fprintf(w, "  %s\n", f.Violation.What)
	fmt.Fprintf(w, "  must hold: %s\n", f.Violation.Invariant.Says)
	fmt.Fprintf(w, "  plan: %s\n", strings.Join(steps, "; "))
	fmt.Fprintf(w, "  %d steps, %d of them out of plain order\n\n", f.Violation.Step, len(f.Case.Schedule))
	_, err := f.Trace.WriteTo(w)
	return err
}
