package scenario

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// WriteHTML writes the report as a page of its own: it has no script and fetches
// nothing.
func (r *Report) WriteHTML(w io.Writer) error {
	p := page{Title: cmp.Or(r.Kernel.Release, "A kernel that could not be looked at"), Summary: r.Summary(), Sides: []*side{newSide("", []*Report{r})}}
	if r.Error != "" {
		p.Findings = append(p.Findings, finding{Text: r.Error})
	}
	p.Findings = append(p.Findings, r.findings()...)
	return p.write(w)
}

// WriteHTML writes the comparison as a page of its own, as [Report.WriteHTML]
// does. What it shows of a single run is of each kernel's last.
func (c *Comparison) WriteHTML(w io.Writer) error {
	p := page{Summary: c.Summary(), IOPS: c.IOPS, Sides: []*side{newSide("baseline", c.Baseline), newSide("kernel", c.Kernel)}}
	switch a, b := p.Sides[0].Kernel.Release, p.Sides[1].Kernel.Release; {
	case a == "" || b == "":
		p.Title = "Two kernels"
	case a == b:
		p.Title = "Two builds of " + a
	default:
		p.Title = b + " beside " + a
	}
	for i, runs := range [][]*Report{c.Baseline, c.Kernel} {
		for _, r := range runs {
			if r.Error != "" {
				p.Findings = append(p.Findings, finding{Scenario: p.Sides[i].Role, Text: r.Error})
			}
		}
	}
	for _, d := range c.Differences {
		n := len(p.Differences) - 1
		if n < 0 || p.Differences[n].Scenario != d.Scenario {
			p.Differences = append(p.Differences, difference{Scenario: d.Scenario})
			n++
		}
		p.Differences[n].add(d)
	}
	return p.write(w)
}

//go:embed report.html
var pageText string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"anchor": anchor, "verdict": verdictMark, "plural": plural, "seconds": seconds, "dash": dash, "console": consoleText,
	"anyOf": func(values []string) string { return dash(strings.Join(values, " or ")) },
	"fixed": func(digits int, f float64) string { return strconv.FormatFloat(f, 'f', digits, 64) },
	"step":  func(i int) int { return i + 1 },
}).Parse(pageText))

// page is what the template shows: one kernel, or two of which the first is the
// baseline.
type page struct {
	Title, Summary string
	Sides          []*side
	Findings       []finding
	Differences    []difference
	IOPS           []IOPSRatio

	Limits    []limitsRow
	Others    []*section
	Latencies latencies
	Sections  []*section
}

// Two says whether the page is about two kernels.
func (p *page) Two() bool { return len(p.Sides) == 2 }

// Drawn says whether any scenario has a picture.
func (p *page) Drawn() bool {
	return slices.ContainsFunc(p.Sections, func(s *section) bool {
		return slices.ContainsFunc(s.Seen, func(o seenBy) bool { return len(o.LUNs) > 0 })
	})
}

// Consoles are the sides that have a console's log.
func (p *page) Consoles() []*side {
	return slices.DeleteFunc(slices.Clone(p.Sides), func(s *side) bool { return s.Console == "" })
}

// side is a kernel, and the last of its runs that came to anything.
type side struct {
	Role string // "baseline" or "kernel"; empty for a single one
	Runs int
	*Report
	rows []row
}

func newSide(role string, runs []*Report) *side {
	s := &side{Role: role, Runs: len(runs), Report: new(Report)}
	for _, r := range runs {
		if len(r.Results) > 0 || len(s.Results) == 0 {
			s.Report = r
		}
	}
	s.rows = s.Report.rows()
	return s
}

// difference is what differs in a scenario, or in the kernels themselves.
type difference struct {
	Scenario string
	Rows     []Difference
}

// add adds a difference: what both witnesses saw alike is one.
func (g *difference) add(d Difference) {
	if n := len(g.Rows) - 1; n >= 0 {
		last := &g.Rows[n]
		what, both := strings.CutSuffix(last.What, atTarget)
		if both && d.What == what+inKernel && slices.Equal(last.Baseline, d.Baseline) && slices.Equal(last.Kernel, d.Kernel) {
			last.What = what + atTarget + " and in the kernel"
			return
		}
	}
	g.Rows = append(g.Rows, d)
}

// section is a scenario, as each kernel carried it out.
type section struct {
	Name, Shows string
	Differs     bool // between the two kernels
	Seen        []seenBy
}

// seenBy is a kernel's result of a scenario.
type seenBy struct {
	Role string
	*Result
	Outcome    string // the verdict, or how often each came
	LUNs, Tags []plot
	TagsCut    bool   // there may be more hardware queues
	BadTime    string // why the timeline isn't drawn
}

// Not counts the checks that don't hold.
func (s seenBy) Not() (n int) {
	for _, c := range s.Checks {
		if !c.OK {
			n++
		}
	}
	return n
}

// write fills the page in and writes it.
func (p *page) write(w io.Writer) error {
	for _, name := range p.names() {
		s := p.section(name)
		p.Sections = append(p.Sections, s)
		if slices.ContainsFunc(s.Seen, func(o seenBy) bool { return o.LimitsResult != nil }) {
			p.Limits = append(p.Limits, newLimitsRow(s))
		} else {
			p.Others = append(p.Others, s)
		}
	}
	p.Latencies = newLatencies(p.Sections)
	slices.SortStableFunc(p.Sections, func(a, b *section) int {
		rank := map[bool]int{false: 1}
		return cmp.Compare(rank[a.Differs], rank[b.Differs])
	})
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return err
	}
	_, err := io.WriteString(w, strings.Map(visible, strings.ToValidUTF8(b.String(), "\uFFFD")))
	return err
}

// names are the scenarios' names, in the order in which they ran.
func (p *page) names() (names []string) {
	for _, s := range p.Sides {
		for _, o := range s.rows {
			if !slices.Contains(names, o.Name) {
				names = append(names, o.Name)
			}
		}
	}
	return names
}

func (p *page) section(name string) *section {
	s := &section{Name: name}
	if sc, err := lookup(name); err == nil {
		s.Shows = sc.Shows
	}
	s.Differs = slices.ContainsFunc(p.Differences, func(d difference) bool { return d.Scenario == name })
	end, most := 0, 0 // the axes are the same on both sides
	for _, side := range p.Sides {
		i := slices.IndexFunc(side.rows, func(o row) bool { return o.Name == name })
		if i < 0 {
			continue
		}
		o := seenBy{Role: side.Role, Result: side.rows[i].Result, Outcome: side.rows[i].verdict}
		if t := o.Timeline; t != nil {
			if err := t.check(); err != nil {
				o.BadTime = err.Error()
			} else {
				end = max(end, t.EndMS)
				for _, l := range t.LUNs {
					most = max(most, l.InFlight.most(), l.QueueDepth.most())
				}
			}
		}
		s.Seen = append(s.Seen, o)
	}
	for i := range s.Seen {
		if o := &s.Seen[i]; o.Timeline != nil && o.BadTime == "" {
			o.draw(end, top(most))
		}
	}
	return s
}

// draw makes the pictures of a timeline: what was never known has none.
func (s *seenBy) draw(end, most int) {
	for i := range s.Timeline.LUNs {
		if l := &s.Timeline.LUNs[i]; l.InFlight.most() > 0 {
			s.LUNs = append(s.LUNs, lunPlot(s.Timeline, l, end, most))
		}
	}
	for i := range s.Timeline.Tags {
		s.Tags = append(s.Tags, tagPlot(s.Timeline, &s.Timeline.Tags[i], end))
	}
	s.TagsCut = len(s.Tags) == maxTagTracks
}

// cell is a value in a table. Marked is one that is not what was predicted, or not
// what the baseline has.
type cell struct {
	Label, Value string
	Marked       bool
}

// limitsRow is a configuration of the limits' table, and what each kernel made of it.
type limitsRow struct {
	Name, Host string
	Config     []cell
	Seen       []limitsSeen
}

type limitsSeen struct {
	Role             string
	Cells            []cell
	Verdict, Outcome string
}

func newLimitsRow(s *section) limitsRow {
	row := limitsRow{Name: s.Name}
	for _, o := range s.Seen {
		if o.LimitsResult == nil {
			continue
		}
		c := o.Case
		row.Host = c.title()
		row.Config = []cell{
			{Label: "hw queues", Value: number(c.Queues())}, {Label: "can_queue", Value: number(c.CanQueue)}, {Label: "cmd_per_lun", Value: number(c.CmdPerLUN)},
		}
		seen := limitsSeen{Role: o.Role, Verdict: o.Verdict, Outcome: o.Outcome, Cells: []cell{
			{Label: "queue_depth", Value: number(o.QueueDepth)},
			{Label: "map predicted", Value: dash(o.MapPredicted)},
			{Label: "map observed", Value: dash(o.MapObserved), Marked: o.MapObserved != "" && o.MapObserved != o.MapPredicted},
			{Label: "lowered to", Value: o.lowered()},
			{Label: "most at first", Value: o.Before.String()},
			{Label: "most lowered", Value: o.Lowered.String()},
			{Label: "most raised", Value: o.Raised.String()},
			{Label: "4 KiB IOPS", Value: number(int(o.IOPS))},
		}}
		if len(row.Seen) > 0 {
			for i, before := range row.Seen[0].Cells[:len(seen.Cells)-1] { // IOPS always differ
				seen.Cells[i].Marked = seen.Cells[i].Marked || seen.Cells[i].Value != before.Value
			}
		}
		row.Seen = append(row.Seen, seen)
	}
	return row
}

// latencies are the latencies' table: they are drawn on one logarithmic axis.
type latencies struct {
	Ticks []tick
	Rows  []latencyRow
}

type latencyRow struct {
	Name, Role string
	Reads      uint64
	Cells      []cell
	// Most is from the median to the 90th percentile, All to the slowest, in percent
	// of the axis; the ticks are percentiles.
	Most, All extent
	Ticks     []tick
}

// AllEnd is where All ends.
func (r latencyRow) AllEnd() float64 { return r.All.From + r.All.Width }

func newLatencies(sections []*section) (l latencies) {
	low, high := math.Inf(1), 0.0
	each := func(f func(s *section, o seenBy, at func(percent float64) (uint64, bool))) {
		for _, s := range sections {
			for _, o := range s.Seen {
				if o.LimitsResult == nil || o.Latency == nil || o.Latency.MaxNS == 0 {
					continue
				}
				at := func(percent float64) (uint64, bool) {
					i := slices.IndexFunc(o.Latency.Percentiles, func(p Percentile) bool { return p.Percent == percent })
					if i < 0 || o.Latency.Percentiles[i].NS == 0 {
						return 0, false
					}
					return o.Latency.Percentiles[i].NS, true
				}
				if _, ok := at(50); ok {
					f(s, o, at)
				}
			}
		}
	}
	each(func(_ *section, o seenBy, at func(float64) (uint64, bool)) {
		median, _ := at(50)
		low, high = min(low, float64(median)), max(high, float64(o.Latency.MaxNS))
	})
	if high == 0 {
		return l
	}
	low, high = math.Log10(low/1.2), math.Log10(high*1.2)
	x := func(ns uint64) float64 { return min(max((math.Log10(float64(ns))-low)/(high-low)*100, 0), 100) }
	for decade := math.Floor(low); decade <= high; decade++ {
		for _, n := range []float64{1, 2, 5} {
			ns := n * math.Pow(10, decade)
			if at := (math.Log10(ns) - low) / (high - low) * 100; at >= 0 && at <= 100 && (n == 1 || high-low < 2) {
				l.Ticks = append(l.Ticks, tick{At: at, Text: axisTime(ns)})
			}
		}
	}
	each(func(s *section, o seenBy, at func(float64) (uint64, bool)) {
		median, _ := at(50)
		row := latencyRow{Name: s.Name, Role: o.Role, Reads: o.Latency.Reads}
		row.All = extent{From: x(median), Width: x(o.Latency.MaxNS) - x(median)}
		for _, percent := range []float64{50, 90, 99, 99.9} {
			c := cell{Label: strconv.FormatFloat(percent, 'f', -1, 64) + " %", Value: "-"}
			if ns, ok := at(percent); ok {
				c.Value = duration(ns)
				row.Ticks = append(row.Ticks, tick{At: x(ns)})
				if percent == 90 {
					row.Most = extent{From: x(median), Width: x(ns) - x(median)}
				}
			}
			row.Cells = append(row.Cells, c)
		}
		row.Cells = append(row.Cells, cell{Label: "slowest", Value: duration(o.Latency.MaxNS)})
		l.Rows = append(l.Rows, row)
	})
	return l
}

// duration is a time with three digits, in milliseconds where that is at all fit,
// so that a column of them can be compared.
func duration(ns uint64) string {
	ms := float64(ns) / 1e6
	switch {
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	case ms >= 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms >= 0.1:
		return fmt.Sprintf("%.2f ms", ms)
	}
	return strconv.FormatFloat(ms, 'g', 3, 64) + " ms"
}

// axisTime is a round time for an axis.
func axisTime(ns float64) string {
	if ns >= 1e9 {
		return fmt.Sprintf("%g s", ns/1e9)
	}
	return fmt.Sprintf("%g ms", ns/1e6)
}

// seconds is a time that isn't broken in two at the end of a line.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f\u00a0s", d.Seconds()) }

// verdictMark is a sign that tells verdicts apart without colour, which is also
// the class that gives one.
func verdictMark(verdict string) struct{ Sign, Class string } {
	switch verdict {
	case AsPredicted:
		return struct{ Sign, Class string }{"✓", "good"}
	case Differs:
		return struct{ Sign, Class string }{"≠", "differs"}
	case Skipped:
		return struct{ Sign, Class string }{"–", "skipped"}
	}
	return struct{ Sign, Class string }{"✗", "failed"}
}

var notInAnchor = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// anchor is a scenario's name as the page's own links have it.
func anchor(name string) string { return "s-" + notInAnchor.ReplaceAllString(name, "-") }

// escapes are what a console is told to colour or to clear itself by.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// consoleText is a console's log without what isn't text.
func consoleText(log string) string {
	return escapes.ReplaceAllString(strings.ReplaceAll(log, "\r", ""), "")
}

// visible makes signs of the characters that could change how others look: a
// kernel's log may hold anything.
func visible(r rune) rune {
	switch {
	case r == '\n' || r == '\t':
		return r
	case r < ' ':
		return 0x2400 + r // SYMBOL FOR ...
	case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r >= 0xFFFE && r <= 0xFFFF || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r):
		return unicode.ReplacementChar
	}
	return r
}
