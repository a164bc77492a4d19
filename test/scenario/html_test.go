package scenario

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

// twoKernels is a run of a patched kernel beside one that isn't, which was made
// with --json.
func twoKernels(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/two.json")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// compared reads a comparison in JSON.
func compared(t testing.TB, b []byte) *Comparison {
	t.Helper()
	c := new(Comparison)
	if err := json.Unmarshal(b, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// element is a start of one in a page.
type element struct {
	Name  string
	Attrs map[string]string
}

// pageOf has a page written and takes it apart. It has to be XML, too, so that
// what isn't nested rightly shows.
func pageOf(t testing.TB, write func(io.Writer) error) (page string, elements []element) {
	t.Helper()
	var b strings.Builder
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	page = b.String()
	d := xml.NewDecoder(strings.NewReader(page))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return page, elements
		}
		if err != nil {
			line, column := d.InputPos()
			t.Fatalf("line %d, column %d: %v", line, column, err)
		}
		if s, ok := token.(xml.StartElement); ok {
			e := element{Name: s.Name.Local, Attrs: map[string]string{}}
			for _, a := range s.Attr {
				e.Attrs[a.Name.Local] = a.Value
			}
			elements = append(elements, e)
		}
	}
}

// outline is a page's headings and pictures, in their order.
func outline(page string) (out []string) {
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "<h1>"), strings.HasPrefix(line, "<h2>"):
			out = append(out, strings.NewReplacer("<h1>", "", "</h1>", "", "<h2>", "# ", "</h2>", "").Replace(line))
		case strings.HasPrefix(line, "<header><h3>"):
			name, _, _ := strings.Cut(strings.TrimPrefix(line, "<header><h3>"), "<")
			out = append(out, "## "+name)
		case strings.HasPrefix(line, "<figcaption>"):
			out = append(out, strings.NewReplacer("<figcaption>", "- ", "</figcaption>", "").Replace(line))
		}
	}
	return out
}

func TestHTMLOfTwoKernels(t *testing.T) {
	c := compared(t, twoKernels(t))
	c.Kernel[0].Console = "\x1b[2J[    0.000000] Linux version\r\n"
	page, elements := pageOf(t, c.WriteHTML)
	golden(t, "two.outline", strings.Join(outline(page), "\n")+"\n")
	if !strings.Contains(page, ">[    0.000000] Linux version\n</pre>") {
		t.Error("the console's log isn't there, or not as text")
	}
	ids := map[string]bool{}
	for _, e := range elements {
		if id := e.Attrs["id"]; id != "" {
			if ids[id] {
				t.Errorf("two elements with id %s", id)
			}
			ids[id] = true
		}
	}
	// What differs is first, and leads to the scenario.
	first := strings.Index(page, "What differs")
	for _, d := range c.Differences {
		link := `<a href="#` + anchor(d.Scenario) + `"`
		if i := strings.Index(page, link); d.Scenario != "" && (i < first || !ids[anchor(d.Scenario)]) {
			t.Errorf("no %s beneath what differs, or nothing there", link)
		}
	}
}

func TestHTMLOfOneKernel(t *testing.T) {
	r := sample()
	r.Results[0].Timeline = compared(t, twoKernels(t)).Kernel[0].Results[0].Timeline
	page, _ := pageOf(t, r.WriteHTML)
	golden(t, "one.outline", strings.Join(outline(page), "\n")+"\n")
	for _, want := range append(strings.Split(r.Summary(), "\n"), "WARNING: suspicious RCU usage", "not done after 1m0s", "limits/tcm_loop/4/64/64",
		"≠</span> differs", "✗</span> failed", "–</span> skipped", "✓</span> as predicted", "8: EINVAL", "7 (8)") {
		if !strings.Contains(page, want) {
			t.Errorf("it doesn't say %q", want)
		}
	}
}

// What ran several times is on the page once, with what came how often, and what
// hung is there.
func TestHTMLOfRuns(t *testing.T) {
	good := Result{Name: "eh/abort", Verdict: AsPredicted}
	stuck := Result{Name: "eh/abort", Verdict: Failed, Error: "hold: it took over 3m0s", Hang: &Hang{Tasks: []Task{{ID: 7, Name: "fio<1>", State: "D"}}}}
	page, _ := pageOf(t, (&Report{Repeat: 2, Seed: 4711, Results: []Result{good, stuck}}).WriteHTML)
	for _, want := range []string{"✗</span> as predicted 1 of 2, failed 1", "(1 of 2)", "What hung", "fio&lt;1&gt;", "--shuffle 4711"} {
		if !strings.Contains(page, want) {
			t.Errorf("it doesn't say %q", want)
		}
	}
	if n := strings.Count(page, `<section class="scenario"`); n != 1 {
		t.Errorf("%d sections, want 1", n)
	}
}

// A run that came to nothing is a page that says so.
func TestHTMLOfNothing(t *testing.T) {
	page, _ := pageOf(t, (&Report{Error: "no QEMU", NotRun: []string{"eh/abort"}}).WriteHTML)
	if !strings.Contains(page, "no QEMU") || !strings.Contains(page, "eh/abort") {
		t.Error("it doesn't say why")
	}
	pageOf(t, Compare(nil, nil).WriteHTML)
}

// The page has no script and fetches nothing: its links stay within it.
func TestHTMLIsSelfContained(t *testing.T) {
	page, elements := pageOf(t, compared(t, twoKernels(t)).WriteHTML)
	for _, e := range elements {
		switch e.Name {
		case "script", "link", "img", "image", "iframe", "object", "embed", "use", "base", "form", "foreignObject":
			t.Errorf("there is a %s", e.Name)
		}
		for name, value := range e.Attrs {
			if name == "src" || name == "srcset" || strings.HasPrefix(name, "on") || name == "href" && !strings.HasPrefix(value, "#") {
				t.Errorf("%s has %s=%q", e.Name, name, value)
			}
		}
	}
	for _, never := range []string{"url(", "@import"} {
		if strings.Contains(page, never) {
			t.Errorf("its style has %s", never)
		}
	}
	if want := `content="default-src 'none'; style-src 'unsafe-inline'"`; !strings.Contains(page, want) {
		t.Errorf("no policy %s", want)
	}
}

// All text that comes from a kernel is text on the page: with the worst instead of
// it, the page has the same elements with the same attributes.
func TestHTMLEscapes(t *testing.T) {
	const evil = "</td></pre></details></style><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload='x' --> ]]>\x1b[2J\x00\u202e\u2028{{.}}"
	shape := func(text string) (out []string, page string) {
		var any any
		if err := json.Unmarshal(twoKernels(t), &any); err != nil {
			t.Fatal(err)
		}
		n := 0
		b, err := json.Marshal(replaceText(any, func() string { n++; return fmt.Sprint(text, n) }))
		if err != nil {
			t.Fatal(err)
		}
		c := compared(t, b)
		for _, r := range append(c.Baseline, c.Kernel...) {
			r.Error, r.Console, r.NotRun = text, text, []string{text}
			r.Results[0].Error = text
		}
		page, elements := pageOf(t, c.WriteHTML)
		for _, e := range elements {
			s := e.Name
			for _, name := range []string{"class", "href", "id", "src"} {
				if _, ok := e.Attrs[name]; ok {
					s += " " + name
				}
			}
			out = append(out, fmt.Sprint(s, len(e.Attrs)))
		}
		return out, page
	}
	want, _ := shape("text")
	got, page := shape(evil)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("elements (-want +got):\n%s", diff)
	}
	if i := strings.IndexFunc(page, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r))
	}); i >= 0 {
		t.Errorf("a character that isn't seen: %q", page[max(i-20, 0):i+20])
	}
	if !strings.Contains(page, "&lt;script&gt;alert(1)") {
		t.Error("the text isn't on the page at all")
	}
}

// replaceText replaces all strings in what was JSON, but for times.
func replaceText(v any, with func() string) any {
	switch v := v.(type) {
	case string:
		return with()
	case []any:
		for i := range v {
			v[i] = replaceText(v[i], with)
		}
	case map[string]any:
		for k := range v {
			if k != "started" {
				v[k] = replaceText(v[k], with)
			}
		}
	}
	return v
}

// A timeline that can't be true is not drawn, and the page says so.
func TestHTMLOfABadTimeline(t *testing.T) {
	long := make(Series, maxPoints+1)
	good := []LUNTrack{{Device: "1:0:0:0", CountedBy: "target", InFlight: Series{{0, 1, 1}}}}
	for name, bad := range map[string]Timeline{
		"no end":               {LUNs: good},
		"ends in years":        {EndMS: 1 << 60, LUNs: good},
		"a step after the end": {EndMS: 10, LUNs: good, Steps: []TimedStep{{MS: 11}}},
		"too many steps":       {EndMS: 10, LUNs: good, Steps: make([]TimedStep, maxSteps+1)},
		"too many LUNs":        {EndMS: 10, LUNs: make([]LUNTrack, maxLUNTracks+1)},
		"too many queues":      {EndMS: 10, LUNs: good, Tags: make([]TagTrack, maxTagTracks+1)},
		"no tags":              {EndMS: 10, LUNs: good, Tags: []TagTrack{{Tags: 0}}},
		"too many points":      {EndMS: 10, LUNs: []LUNTrack{{InFlight: long}}},
		"backwards":            {EndMS: 10, LUNs: []LUNTrack{{InFlight: Series{{5, 1, 1}, {4, 1, 1}}}}},
		"below 0":              {EndMS: 10, LUNs: []LUNTrack{{InFlight: Series{{0, -7, 1}}}}},
		"low above high":       {EndMS: 10, LUNs: []LUNTrack{{QueueDepth: Series{{0, 2, 1}}}}},
		"more than there are":  {EndMS: 10, LUNs: []LUNTrack{{Held: Series{{0, 0, 1 << 40}}}}},
		"tags below 0":         {EndMS: 10, LUNs: good, Tags: []TagTrack{{Tags: 4, InUse: Series{{0, -2, -2}}}}},
	} {
		r := &Report{Results: []Result{{Name: "eh/abort", Verdict: AsPredicted, Timeline: &bad}}}
		page, _ := pageOf(t, r.WriteHTML)
		if strings.Contains(page, "<figure") || !strings.Contains(page, "No picture") {
			t.Errorf("%s: it was drawn", name)
		}
	}
}

// However much is recorded of a scenario, its part of the page is bounded.
func TestHTMLIsBounded(t *testing.T) {
	var busy Series
	for i := range maxPoints {
		busy = append(busy, Point{MS: 333 * i, Low: i % 3, High: 4000 + i%97})
	}
	full := &Timeline{EndMS: 400 * maxPoints}
	for range maxLUNTracks {
		full.LUNs = append(full.LUNs, LUNTrack{Device: "255:255:255:255", InFlight: busy, QueueDepth: busy, Held: busy})
	}
	for i := range maxTagTracks {
		full.Tags = append(full.Tags, TagTrack{Queue: i, Tags: 8192, InUse: busy})
	}
	for range maxSteps {
		full.Steps = append(full.Steps, TimedStep{What: "queue_depth 4096"})
	}
	size := func(t1 *Timeline) int {
		page, _ := pageOf(t, (&Report{Results: []Result{{Name: "eh/abort", Verdict: AsPredicted, Timeline: t1}}}).WriteHTML)
		return len(page)
	}
	if n := size(full) - size(nil); n > 300<<10 {
		t.Errorf("%d bytes of one timeline, want at most 300 KiB", n)
	}
}

func TestAxes(t *testing.T) {
	for n, want := range map[int]int{0: 1, 1: 1, 3: 3, 5: 6, 12: 12, 16: 16, 63: 80, 64: 64, 8192: 8192} {
		if got := top(n); got != want || got < n {
			t.Errorf("the axis for %d ends at %d, want %d", n, got, want)
		}
	}
	a := axes{end: 2000, most: 64}
	s := Series{{0, Unknown, Unknown}, {500, 0, 32}, {1000, Unknown, Unknown}, {1500, 64, 64}}
	if got, want := a.edge(s, 2000), "M250.0 500V500H500.0M750.0 0V0H1000.0"; got != want {
		t.Errorf("edge %s, want %s", got, want)
	}
	if got, want := a.area(s, 2000, lowest), "M250.0 1000V1000H500.0V1000ZM750.0 1000V0H1000.0V1000Z"; got != want {
		t.Errorf("area %s, want %s", got, want)
	}
	held := a.held(Series{{0, 1, 1}, {500, 0, 1}, {1000, 1, 1}}, 2000)
	if diff := cmp.Diff([]extent{{0, 25}, {50, 50}}, held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// Whatever a guest sends as its result makes a page that is whole.
func FuzzHTML(f *testing.F) {
	few := Series{{0, 0, 8}, {5, Unknown, Unknown}, {7, 3, 3}}
	results := sample().Results
	results[0].Timeline = &Timeline{
		EndMS: 10, Steps: []TimedStep{{5, "fill"}}, Tags: []TagTrack{{Queue: -1, Tags: 64, InUse: few}},
		LUNs: []LUNTrack{{Device: "1:0:0:0", CountedBy: "target", InFlight: few, QueueDepth: few, Held: few}},
	}
	results[0].Latency = &Latency{Reads: 2000, MaxNS: 5e6, Percentiles: []Percentile{{50, 1e6}, {90, 2e6}, {99, 3e6}}}
	for _, r := range results {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Result
		if json.Unmarshal(b, &r) == nil {
			pageOf(t, (&Report{Results: []Result{r}}).WriteHTML)
			pageOf(t, Compare([]*Report{{Results: []Result{r}}}, []*Report{{Results: []Result{r}}}).WriteHTML)
		}
	})
}
