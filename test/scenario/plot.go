package scenario

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// plot is a picture of values over time: paths in a square of plotSize on each
// side that is stretched to its place, and what stands around it, in percent of
// the width from the left and of the height from the top.
type plot struct {
	Caption string
	Area    string // under the highest values
	Core    string // under the lowest
	Edge    string // along the highest
	Depth   string // along queue_depth
	Held    []extent
	XTicks  []tick
	YTicks  []tick
	Steps   []tick
}

const plotSize = 1000

// tick is a place on an axis; Text is empty where there is no room for it.
type tick struct {
	At   float64
	Text string
}

// extent is a part of the width.
type extent struct{ From, Width float64 }

// lunPlot draws what a LUN had in flight. The axes end at endMS and at most.
func lunPlot(t *Timeline, l *LUNTrack, endMS, most int) plot {
	p := plot{Caption: "In flight on " + l.Device + ", counted by the " + l.CountedBy}
	a := axes{end: endMS, most: most}
	p.Area, p.Core, p.Edge = a.area(l.InFlight, t.EndMS, highest), a.area(l.InFlight, t.EndMS, lowest), a.edge(l.InFlight, t.EndMS)
	p.Depth = a.edge(l.QueueDepth, t.EndMS)
	p.Held = a.held(l.Held, t.EndMS)
	p.XTicks, p.YTicks = a.seconds(), a.counts()
	last := -10.0
	for i, s := range t.Steps {
		at := a.x(s.MS) * 100 / plotSize
		k := tick{At: at}
		if at-last >= 3.5 {
			k.Text, last = strconv.Itoa(i+1), at
		}
		p.Steps = append(p.Steps, k)
	}
	return p
}

// tagPlot draws the tags that were in use.
func tagPlot(t *Timeline, q *TagTrack, endMS int) plot {
	name := "host-wide"
	if q.Queue >= 0 {
		name = "hw queue " + strconv.Itoa(q.Queue)
	}
	a := axes{end: endMS, most: q.Tags}
	return plot{
		Caption: fmt.Sprintf("%s: most seen %d of %d", name, q.InUse.most(), q.Tags),
		Area:    a.area(q.InUse, t.EndMS, highest), Core: a.area(q.InUse, t.EndMS, lowest), Edge: a.edge(q.InUse, t.EndMS),
	}
}

// axes begin at 0.
type axes struct {
	end  int // milliseconds, on the right
	most int // at the top
}

func (a axes) x(ms int) float64 { return float64(ms) * plotSize / float64(max(a.end, 1)) }

func (a axes) y(value int) float64 { return plotSize - float64(value)*plotSize/float64(max(a.most, 1)) }

func highest(p Point) int { return p.High }
func lowest(p Point) int  { return p.Low }

// known calls f for each stretch of points that are known, with the time at which
// it ends. end is the series' own.
func (s Series) known(end int, f func(part Series, end int)) {
	from := 0
	for i := range s {
		if s[i].Low == Unknown {
			if i > from {
				f(s[from:i], s[i].MS)
			}
			from = i + 1
		}
	}
	if from < len(s) {
		f(s[from:], end)
	}
}

// most is the highest value, 0 if there is none.
func (s Series) most() (n int) {
	for _, p := range s {
		n = max(n, p.High)
	}
	return n
}

// steps goes along the values of a stretch that ends at end.
func (a axes) steps(b *strings.Builder, part Series, end int, value func(Point) int) {
	for i, p := range part {
		until := end
		if i+1 < len(part) {
			until = part[i+1].MS
		}
		fmt.Fprintf(b, "V%.0fH%.1f", a.y(value(p)), a.x(until))
	}
}

// area is the path around what lies below the values.
func (a axes) area(s Series, end int, value func(Point) int) string {
	var b strings.Builder
	s.known(end, func(part Series, end int) {
		fmt.Fprintf(&b, "M%.1f %d", a.x(part[0].MS), plotSize)
		a.steps(&b, part, end, value)
		fmt.Fprintf(&b, "V%dZ", plotSize)
	})
	return b.String()
}

// edge is the path along the highest values.
func (a axes) edge(s Series, end int) string {
	var b strings.Builder
	s.known(end, func(part Series, end int) {
		fmt.Fprintf(&b, "M%.1f %.0f", a.x(part[0].MS), a.y(part[0].High))
		a.steps(&b, part, end, highest)
	})
	return b.String()
}

// held are the times in which all looks saw completions held back.
func (a axes) held(s Series, end int) (out []extent) {
	for i, p := range s {
		to := end
		if i+1 < len(s) {
			to = s[i+1].MS
		}
		if p.Low == 1 {
			from := a.x(p.MS) * 100 / plotSize
			out = append(out, extent{From: from, Width: a.x(to)*100/plotSize - from})
		}
	}
	return out
}

// seconds are ticks of the time's axis, some six.
func (a axes) seconds() (out []tick) {
	step := nice(float64(a.end) / 1000 / 8)
	for i := 0; ; i++ {
		s := float64(i) * step
		at := s * 1000 / float64(max(a.end, 1)) * 100
		if at > 98 { // the last would stand out
			return out
		}
		text := strconv.FormatFloat(s, 'f', max(0, -int(math.Floor(math.Log10(step)))), 64)
		if i == 0 {
			text = "0 s"
		}
		out = append(out, tick{At: at, Text: text})
	}
}

// counts are ticks of the axis of commands, at the top a multiple of a quarter.
func (a axes) counts() (out []tick) {
	step := max(1, a.most/4)
	for n := 0; n <= a.most; n += step {
		out = append(out, tick{At: a.y(n) * 100 / plotSize, Text: strconv.Itoa(n)})
	}
	return out
}

// nice is the next of 1, 2, 5, 10, ... times a power of ten.
func nice(f float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(max(f, 0.001))))
	for _, n := range []float64{1, 2, 5} {
		if n*unit >= f {
			return n * unit
		}
	}
	return 10 * unit
}

// top is where an axis ends that has to show n.
func top(n int) int {
	if n <= 4 {
		return max(n, 1)
	}
	step := int(nice(float64(n) / 4))
	if n%4 == 0 {
		step = n / 4
	}
	return step * ((n + step - 1) / step)
}

// check says what is wrong with a timeline, which comes from a guest: nothing may
// follow from it but a picture.
func (t *Timeline) check() error {
	const day = int(24 * time.Hour / time.Millisecond)
	switch {
	case t.EndMS < 1 || t.EndMS > day:
		return fmt.Errorf("it ends after %d ms", t.EndMS)
	case len(t.LUNs) > maxLUNTracks || len(t.Tags) > maxTagTracks || len(t.Steps) > maxSteps:
		return errors.New("it has too many parts")
	}
	last := 0
	for _, s := range t.Steps {
		if s.MS < last || s.MS > t.EndMS {
			return fmt.Errorf("a step at %d ms", s.MS)
		}
		last = s.MS
	}
	for _, l := range t.LUNs {
		if err := errors.Join(l.InFlight.check(t.EndMS), l.QueueDepth.check(t.EndMS), l.Held.check(t.EndMS)); err != nil {
			return err
		}
	}
	for _, q := range t.Tags {
		if q.Tags < 1 {
			return fmt.Errorf("a queue of %d tags", q.Tags)
		}
		if err := q.InUse.check(t.EndMS); err != nil {
			return err
		}
	}
	return nil
}

func (s Series) check(end int) error {
	if len(s) > maxPoints {
		return fmt.Errorf("%d points", len(s))
	}
	last := 0
	for _, p := range s {
		unknown := p.Low == Unknown && p.High == Unknown
		if p.MS < last || p.MS > end || !unknown && (p.Low < 0 || p.High < p.Low || p.High > math.MaxInt32) {
			return fmt.Errorf("a point %+v", p)
		}
		last = p.MS
	}
	return nil
}
