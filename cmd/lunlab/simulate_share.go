package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lunlab/queue"
	"lunlab/queue/share"
)

// sharing is what the flags of simulate say about drives that share tags.
type sharing struct {
	drives, depth, load, svg string
	speed                    float64
	set                      []string
	ios                      int
}

// sharingFlags are those that simulate takes with --drives only, and
// exploringFlags those that it doesn't take with it.
var (
	sharingFlags   = []string{"depth", "speed", "load", "set", "svg", "ios"}
	exploringFlags = []string{"host", "no-fair-shares", "steps", "time", "hw-queues", "host-tagset", "needs-budget-token", "configured-depth"}
)

// Limits of the host, if no flag says otherwise: see README.
const (
	sharedTags   = 1024
	sharingDepth = "64"
)

func (s *sharing) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.drives, "drives", "", "drives that share tags: a number, a list, or LO..HI (doubled from one to the next)")
	f.StringVar(&s.depth, "depth", sharingDepth, "with --drives: commands kept at each drive, as --drives has it")
	f.Float64Var(&s.speed, "speed", 1e6, "with --drives: I/Os that a drive can do in a second")
	f.StringVar(&s.load, "load", string(share.Equal), "with --drives: equal, slow, bursts or stops (see --list)")
	f.StringArrayVar(&s.set, "set", nil, "with --drives: set a parameter of the model, `NAME=VALUE` (see --list)")
	f.StringVar(&s.svg, "svg", "", "with --drives: draw the map to this `file`")
	f.IntVar(&s.ios, "ios", 0, "with --drives: I/Os that a run is long enough for (0: about 20000)")
}

// numbers reads a number, a list of numbers, or a range that doubles.
func numbers(flag, s string, hi int) ([]int, error) {
	var all []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "..")
		if !isRange {
			to = from
		}
		a, err := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil || a < 1 || b < a || b > hi {
			return nil, fmt.Errorf("--%s %q: want numbers from 1 to %d, or LO..HI", flag, s, hi)
		}
		for n := a; n < b; n *= 2 {
			all = append(all, n)
		}
		all = append(all, b)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// config is what the flags say, but for rule, drives and depth.
func (s *simulation) sharingConfig(cmd *cobra.Command) (share.Config, error) {
	c := share.Config{
		Load: share.Load(s.sharing.load), Tags: sharedTags, QueueDepth: queue.MaxDepth,
		Speed: s.sharing.speed, Seed: s.seed, IOs: s.sharing.ios, Params: share.DefaultParams(),
	}
	for _, n := range exploringFlags {
		if cmd.Flags().Changed(n) {
			return c, fmt.Errorf("--%s is nothing for --drives", n)
		}
	}
	if cmd.Flags().Changed("can-queue") {
		c.Tags = s.custom.Limits.CanQueue
	}
	if cmd.Flags().Changed("cmd-per-lun") {
		c.QueueDepth = s.custom.Limits.CmdPerLUN
	}
	for _, a := range s.sharing.set {
		if err := c.Params.Set(a); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (s *simulation) runSharing(cmd *cobra.Command) error {
	c, err := s.sharingConfig(cmd)
	if err != nil {
		return err
	}
	drives, err := numbers("drives", s.sharing.drives, share.MaxDrives)
	if err != nil {
		return err
	}
	depths, err := numbers("depth", s.sharing.depth, share.MaxDepth)
	if err != nil {
		return err
	}
	names := s.rules
	if len(names) == 0 {
		names = []string{"fair", "series"}
	}
	var rules []share.Rule
	for _, n := range names {
		r, err := share.LookupRule(n)
		if err != nil {
			return err
		}
		rules = append(rules, r)
	}
	if len(drives)*len(depths) == 1 && s.sharing.svg == "" {
		c.Drives, c.Depth = drives[0], depths[0]
		return s.shareOnce(cmd, c, rules)
	}
	if len(rules) != 2 {
		return errors.New("--rules: want two to compare")
	}
	return s.shareMap(cmd, c, [2]share.Rule(rules), drives, depths)
}

// shareOnce shows what came of one number of drives at one depth.
func (s *simulation) shareOnce(cmd *cobra.Command, c share.Config, rules []share.Rule) error {
	var results []share.Result
	for _, r := range rules {
		c.Rule = r
		res, err := c.Run()
		if err != nil {
			return err
		}
		results = append(results, res)
	}
	out := cmd.OutOrStdout()
	if s.json {
		return encodeJSON(out, struct {
			Parameters map[string]float64 `json:"parameters"`
			Runs       []share.Result     `json:"runs"`
		}{parameterValues(c.Params), results})
	}
	return printShares(out, results)
}

func parameterValues(p share.Params) map[string]float64 {
	values := map[string]float64{}
	for _, q := range share.Parameters() {
		values[q.Name] = q.Value(p)
	}
	return values
}

func printShares(out io.Writer, results []share.Result) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "rule\tKIOPS\t%\tJain\tp50\tp99\tp99.9\ttags, mean\tmost\t")
	row := func(name string, iops float64, of float64, jain string, l share.Latency, mean float64, most int) {
		fmt.Fprintf(t, "%s\t%.1f\t%s\t%s\t%v\t%v\t%v\t%.1f\t%d\t\n", name, iops/1e3, share.Percent(100*(iops/of-1)), jain,
			short(l.P50), short(l.P99), short(l.P999), mean, most)
	}
	for _, r := range results {
		row(r.Rule.Name, r.IOPS, results[0].IOPS, fmt.Sprintf("%.4f", r.Jain), r.Latency, r.MeanTags, r.MostTags)
	}
	for _, r := range results {
		fmt.Fprintf(t, "%s, drive by drive\t\t\t\t\t\t\t\t\t\n", r.Rule.Name)
		for i, d := range r.Drives {
			row(fmt.Sprint(i), d.IOPS, results[0].Drives[i].IOPS, "", d.Latency, d.MeanTags, d.MostTags)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	r := results[0]
	if r.Load == share.Stops {
		fmt.Fprintln(out, "\nKIOPS of all drives but the last, which stops after the first third and gives up its share after the second:")
		for _, r := range results {
			fmt.Fprintf(out, "  %-8s %.1f, %.1f, %.1f\n", r.Rule.Name, r.Thirds[0]/1e3, r.Thirds[1]/1e3, r.Thirds[2]/1e3)
		}
	}
	_, err := fmt.Fprintf(out, "\n%s, %v of virtual time. Drives are compared with the same drive under %s.\n", sharingTitle(r.Config), r.Length.Round(time.Microsecond), r.Rule.Name)
	return err
}

// short leaves out digits that say nothing.
func short(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(100 * time.Nanosecond)
	}
	return d.Round(10 * time.Microsecond)
}

// sharingTitle says what was run, with what differs from the defaults.
func sharingTitle(c share.Config) string {
	s := fmt.Sprintf("%s load, %d tags, drives of %g IOPS, seed %d", c.Load, c.Tags, c.Speed, c.Seed)
	if c.QueueDepth < queue.MaxDepth {
		s += fmt.Sprintf(", queue_depth %d", c.QueueDepth)
	}
	for _, q := range share.Parameters() {
		if v := q.Value(c.Params); v != q.Default {
			s += fmt.Sprintf(", %s=%g", q.Name, v)
		}
	}
	return s
}

func (s *simulation) shareMap(cmd *cobra.Command, c share.Config, rules [2]share.Rule, drives, depths []int) error {
	meter := s.meter(cmd.ErrOrStderr(), len(drives)*len(depths))
	m, err := share.Compare(cmd.Context(), c, rules, drives, depths, meter)
	if err != nil {
		return err
	}
	if s.sharing.svg != "" {
		var b bytes.Buffer
		notes := []string{sharingTitle(c) + ".", "A simulation: its assumptions are listed by lunlab simulate --list."}
		if err := m.WriteSVG(&b, notes); err != nil {
			return err
		}
		if err := os.WriteFile(s.sharing.svg, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	if s.json {
		return encodeJSON(out, struct {
			Parameters map[string]float64 `json:"parameters"`
			*share.Map
		}{parameterValues(c.Params), m})
	}
	return printMap(out, m)
}

func printMap(out io.Writer, m *share.Map) error {
	a, b := m.Rules[0].Name, m.Rules[1].Name
	tables := []struct {
		title string
		cell  func(share.Cell) string
	}{
		{fmt.Sprintf("IOPS of %s against %s, percent", b, a), func(c share.Cell) string { return share.Percent(c.Gain) }},
		{fmt.Sprintf("Jain's index, %s/%s", a, b), func(c share.Cell) string { return fmt.Sprintf("%.2f/%.2f", c.Under[0].Jain, c.Under[1].Jain) }},
		{fmt.Sprintf("p99 latency in us, %s/%s", a, b), func(c share.Cell) string {
			return fmt.Sprintf("%d/%d", c.Under[0].P99.Microseconds(), c.Under[1].P99.Microseconds())
		}},
	}
	for _, table := range tables {
		fmt.Fprintln(out, table.title)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(t, "drives")
		for _, d := range m.Depths {
			fmt.Fprintf(t, "\tdepth %d", d)
		}
		fmt.Fprintln(t, "\t")
		for i, n := range m.Drives {
			fmt.Fprint(t, n)
			for j := range m.Depths {
				fmt.Fprintf(t, "\t%s", table.cell(m.At(i, j)))
			}
			fmt.Fprintln(t, "\t")
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintf(out, "%s. The model's assumptions: --list.\n", sharingTitle(m.Base))
	return err
}

// listSharing lists what there is for --drives.
func listSharing(t io.Writer) {
	fmt.Fprintln(t, "\nRULES OF SHARING\twith --drives")
	for _, r := range share.Rules() {
		fmt.Fprintf(t, "  %s\t%s\n", r.Name, r.Says)
	}
	fmt.Fprintln(t, "\nLOADS\twith --drives")
	for _, l := range share.Loads() {
		fmt.Fprintf(t, "  %s\t%s\n", l, l.Says())
	}
	fmt.Fprintln(t, "\nPARAMETERS\t--set NAME=VALUE, with --drives")
	for _, q := range share.Parameters() {
		fmt.Fprintf(t, "  %s\t%s\t%s\n\t\t%s\n", q.Name, strings.TrimSpace(fmt.Sprintf("%g %s", q.Default, q.Unit)), q.Says, q.From)
	}
}
