package share

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/queue"
)

func config(rule string, drives, depth int) Config {
	r, err := LookupRule(rule)
	if err != nil {
		panic(err)
	}
	return Config{Rule: r, Load: Equal, Drives: drives, Depth: depth, Tags: 1024, QueueDepth: queue.MaxDepth,
		Speed: 1e6, Seed: 1, Params: DefaultParams()}
}

func mustRun(t *testing.T, c Config) Result {
	t.Helper()
	r, err := c.Run()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// At each step of runs by chance no tag is used twice, the counts are of what is
// held, and nobody takes more than its share.
func TestInvariants(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	pick := func(n ...int) int { return n[rng.IntN(len(n))] }
	for range 40 {
		rule, load := Rules()[rng.IntN(len(Rules()))], Loads()[rng.IntN(len(Loads()))]
		c := config(rule.Name, pick(1, 2, 3, 7, 16), pick(1, 2, 5, 16, 40))
		c.Load, c.Tags, c.QueueDepth = load, pick(1, 2, 4, 31, 64), pick(1, 3, 4096)
		c.Seed, c.IOs = rng.Uint64(), 300
		c.Params.CPUs, c.Params.Spread = float64(pick(1, 3, 64)), float64(rng.IntN(2))/4
		name := fmt.Sprintf("%+v", c)
		r := newRun(c)
		held := make([]int, c.Drives)
		for r.step() {
			if err := r.check(); err != nil {
				t.Fatalf("%s: at %d ns: %v", name, r.now, err)
			}
			fair := queue.FairTags(c.Tags, r.tags.activeQueues)
			for i, d := range r.drives {
				if rule.Fair && d.held > held[i] && d.held > fair {
					t.Fatalf("%s: at %d ns drive %d takes tag %d where %d are fair", name, r.now, i, d.held, fair)
				}
				held[i] = d.held
			}
		}
		res := r.result()
		if load != Stops && (len(r.events) == 0 || res.IOPS == 0) {
			t.Errorf("%s: it stood still after %d of %d ns", name, r.now, r.end)
		}
		if res.MostTags > c.Tags {
			t.Errorf("%s: %d tags in use", name, res.MostTags)
		}
	}
}

// Nothing does more than the host adapter and the drives can.
func TestBounds(t *testing.T) {
	for _, rule := range Rules() {
		for _, hostSpeed := range []float64{500, 3000} {
			c := config(rule.Name, 8, 64)
			c.Params.HostSpeed, c.Speed = hostSpeed, 2e5
			r := mustRun(t, c)
			most := min(hostSpeed*1e3, 8*c.Speed) * r.Length.Seconds()
			if n := r.IOPS * r.Length.Seconds(); n > most*1.02+float64(c.Tags) || n < most*0.9 {
				t.Errorf("%s, host %v KIOPS: %.0f I/Os, want about %.0f", rule.Name, hostSpeed, n, most)
			}
		}
	}
}

// Drives of one speed get the same, under each rule, whether tags are short or not.
func TestEqualDrives(t *testing.T) {
	for _, rule := range Rules() {
		for _, drives := range []int{1, 8, 32} {
			for _, depth := range []int{8, 128} {
				c := config(rule.Name, drives, depth)
				c.IOs = 6000
				if r := mustRun(t, c); r.Jain < 0.99 {
					t.Errorf("%s, %d drives at depth %d: Jain's index %.4f", rule.Name, drives, depth, r.Jain)
				}
			}
		}
	}
}

// The same seed gives the same, and another something else.
func TestRepeatable(t *testing.T) {
	for _, load := range Loads() {
		c := config("fair", 5, 32)
		c.Load, c.IOs = load, 2000
		a, b := mustRun(t, c), mustRun(t, c)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs differ", load)
		}
		c.Seed++
		if d := mustRun(t, c); reflect.DeepEqual(a.Drives, d.Drives) {
			t.Errorf("%s: another seed gives the same", load)
		}
	}
}

// A drive that has stopped keeps its share until its grace is over, if shares are
// fair; otherwise the others have it at once.
func TestStopped(t *testing.T) {
	for rule, waits := range map[string]bool{"fair": true, "dropped": false} {
		c := config(rule, 2, 256)
		c.Load, c.Tags, c.Speed, c.Params.Service = Stops, 32, 1e5, 1000
		r := mustRun(t, c)
		if more := r.Thirds[2] > 1.5*r.Thirds[1]; more != waits {
			t.Errorf("%s: the other drive has %.0f, %.0f, %.0f IOPS", rule, r.Thirds[0], r.Thirds[1], r.Thirds[2])
		}
	}
}

// One slow drive among fast ones takes tags from them, unless shares are fair.
func TestSlow(t *testing.T) {
	var tags [2]float64
	for i, rule := range []string{"fair", "dropped"} {
		c := config(rule, 4, 64)
		c.Load, c.Tags, c.Speed = Slow, 128, 2e5
		r := mustRun(t, c)
		tags[i] = r.Drives[3].MeanTags
	}
	if tags[0] > 32 || tags[1] < 40 {
		t.Errorf("the slow drive has %.1f tags with fair shares, %.1f without", tags[0], tags[1])
	}
}

// The figures of a small map, to the last digit.
func TestGolden(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("other CPUs round floating-point numbers otherwise")
	}
	c := config("fair", 1, 1)
	c.IOs, c.Tags, c.Load, c.Seed = 1000, 64, Slow, 7
	rules := [2]Rule{c.Rule, config("series", 1, 1).Rule}
	m, err := Compare(context.Background(), c, rules, []int{2, 8}, []int{4, 32}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(m.Cells, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/golden.json"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(b)); diff != "" {
		t.Errorf("differs from %s (UPDATE_GOLDEN=1 writes it):\n%s", file, diff)
	}
}

// The picture is XML with a box for each cell, and names its rules.
func TestSVG(t *testing.T) {
	m := &Map{Rules: [2]Rule{{Name: "a<b"}, {Name: "c"}}, Drives: []int{1, 2}, Depths: []int{3}, Cells: []Cell{{Gain: 17}, {Gain: -400}}}
	var b strings.Builder
	if err := m.WriteSVG(&b, []string{strings.Repeat("long & ", 40)}); err != nil {
		t.Fatal(err)
	}
	boxes := 0
	var text strings.Builder
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local == "rect" {
				boxes++
			}
			for _, a := range e.Attr {
				if a.Name.Local == "href" {
					t.Errorf("the picture fetches %s", a.Value)
				}
			}
		case xml.CharData:
			text.Write(e)
		}
	}
	if boxes != 3 { // and the ground
		t.Errorf("%d boxes, want 3", boxes)
	}
	for _, want := range []string{`"a<b"`, "+17.0", "-400.0"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in the picture", want)
		}
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		parts []float64
		want  float64
	}{{[]float64{3, 3, 3}, 1}, {[]float64{5, 0, 0, 0}, 0.25}, {[]float64{0, 0}, 0}, {nil, 0}} {
		if got := Jain(c.parts); got != c.want {
			t.Errorf("%v: %v, want %v", c.parts, got, c.want)
		}
	}
}

func TestMistakes(t *testing.T) {
	p := DefaultParams()
	for set, want := range map[string]string{
		"far":         "want NAME=VALUE",
		"far=x":       "is no number",
		"near2=3":     "no parameter named",
		"variation=2": "want 0 to 1",
		"cpus=65":     "want 1 to 64",
		"cpus=1.5":    "want a whole number",
		"io=NaN":      "want 0 to",
	} {
		if err := p.Set(set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
	for want, change := range map[string]func(*Config){
		"drives 65":    func(c *Config) { c.Drives = 65 },
		"depth 0":      func(c *Config) { c.Depth = 0 },
		"tags 0":       func(c *Config) { c.Tags = 0 },
		"queue depth":  func(c *Config) { c.QueueDepth = 5000 },
		"speed":        func(c *Config) { c.Speed = 0 },
		`load "heavy"`: func(c *Config) { c.Load = "heavy" },
		"ios -1":       func(c *Config) { c.IOs = -1 },
		"nodes 0":      func(c *Config) { c.Params.Nodes = 0 },
	} {
		c := config("fair", 2, 2)
		change(&c)
		if _, err := c.Run(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
