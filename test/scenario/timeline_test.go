package scenario

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"lunlab/lun"
	"lunlab/target"
)

// What doesn't change is one point, and what isn't known is no value.
func TestSeries(t *testing.T) {
	var s Series
	for ms, v := range []int{0, 0, 5, 5, 5, Unknown, 7} {
		s.add(ms, v)
	}
	if diff := cmp.Diff(Series{{0, 0, 0}, {2, 5, 5}, {5, Unknown, Unknown}, {6, 7, 7}}, s); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	// The shortest two are the first, then what is known and what isn't.
	for _, want := range []Series{
		{{0, 0, 5}, {5, Unknown, Unknown}, {6, 7, 7}}, {{0, 0, 5}, {5, Unknown, Unknown}}, {{0, Unknown, Unknown}},
	} {
		if s.merge(10); cmp.Diff(want, s) != "" {
			t.Errorf("merged: %v, want %v", s, want)
		}
	}
}

// A series of any length stays small, and no peak gets lost in it.
func TestSeriesBounded(t *testing.T) {
	var s Series
	const looks = 10_000
	for ms := range looks {
		v := ms % 10
		if ms == 4321 {
			v = 64
		}
		s.add(ms, v)
	}
	if len(s) > maxPoints || len(s) < maxPoints/2 {
		t.Errorf("%d points of %d looks, want %d to %d", len(s), looks, maxPoints/2, maxPoints)
	}
	at := -1
	for i, p := range s {
		if i > 0 && p.MS <= s[i-1].MS || p.Low > p.High {
			t.Fatalf("point %d: %+v after %+v", i, p, s[i-1])
		}
		if p.High == 64 {
			at = i
		}
	}
	if at < 0 || s[at].MS > 4321 || at+1 < len(s) && s[at+1].MS <= 4321 {
		t.Errorf("the peak at 4321 is in point %d", at)
	}
}

// A time in which nobody could look isn't filled with what was seen before.
func TestRecorderHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		rec := &recorder{start: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
		rec.timeline = Timeline{EveryMS: 20, LUNs: make([]LUNTrack, 1)}
		go rec.look([]tracked{{disk: &disk{device: "none"}, count: func() int {
			if looks++; looks == 3 {
				time.Sleep(3 * time.Second)
				return 7
			}
			return 5
		}}})
		time.Sleep(3990 * time.Millisecond)
		got := rec.end().LUNs[0].InFlight
		want := Series{{0, 5, 5}, {40, Unknown, Unknown}, {3040, 7, 7}, {3140, 5, 5}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// A recorder sees what a meter holds, and the step in which it did.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := target.NewMeter(nothing{})
		r := new(run)
		r.record(&disk{device: "none", meter: m})
		r.recorder.step("hold")
		m.Hold()
		var done []chan struct{}
		for range 3 {
			end := make(chan struct{})
			done = append(done, end)
			go func() { m.Execute(new(lun.Command)); close(end) }()
		}
		time.Sleep(time.Second)
		r.recorder.step("let go")
		m.Release()
		for _, end := range done {
			<-end
		}
		time.Sleep(time.Second)
		r.recorded()

		unknown := Series{{0, Unknown, Unknown}}
		want := &Timeline{
			EveryMS: 20, EndMS: 2000, Steps: []TimedStep{{0, "hold"}, {1000, "let go"}},
			LUNs: []LUNTrack{{Device: "none", CountedBy: "target", QueueDepth: unknown}},
		}
		l := r.Timeline.LUNs[0]
		want.LUNs[0].InFlight, want.LUNs[0].Held = l.InFlight, l.Held
		if diff := cmp.Diff(want, r.Timeline); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		// Whether the first look and one of those at 1,000 ms came before what they
		// saw is open.
		seen := func(s Series, value, from, to int) bool {
			for i, p := range s {
				end := r.Timeline.EndMS
				if i+1 < len(s) {
					end = s[i+1].MS
				}
				if p.Low == value && p.High == value && p.MS <= from && end >= to {
					return true
				}
			}
			return false
		}
		if !seen(l.InFlight, 3, 20, 1000) || !seen(l.InFlight, 0, 1020, 2000) {
			t.Errorf("in flight: %v", l.InFlight)
		}
		if !seen(l.Held, 1, 20, 1000) || !seen(l.Held, 0, 1020, 2000) {
			t.Errorf("held: %v", l.Held)
		}
	})
}

// nothing is a unit that does nothing.
type nothing struct{ lun.Unit }

func (nothing) Execute(*lun.Command) {}

func TestParseTags(t *testing.T) {
	const tags = "nr_tags=64\nnr_reserved_tags=2\nactive_queues=1\n\nbitmap_tags:\ndepth=64\nbusy=12\ncleared=3\nbits_per_word=16\n"
	const reserved = "\nbitmap_reserved_tags:\ndepth=2\nbusy=1\ncleared=0\n"
	for _, c := range []struct {
		text        string
		tags, inUse int
		ok          bool
	}{
		{tags, 64, 12, true},
		{tags + reserved, 64, 12, true},
		{"", 0, 0, false},
		{"nr_tags=64\n", 0, 0, false},
		{"nr_tags=64\nbitmap_tags:\ndepth=64" + reserved, 0, 0, false},
		{"nr_tags=x\nbitmap_tags:\nbusy=1\n", 0, 0, false},
	} {
		n, inUse, ok := parseTags(c.text)
		if ok != c.ok || ok && (n != c.tags || inUse != c.inUse) {
			t.Errorf("%q: %d of %d, %v; want %d of %d, %v", c.text, inUse, n, ok, c.inUse, c.tags, c.ok)
		}
	}
}

func FuzzParseTags(f *testing.F) {
	f.Add("nr_tags=64\nbitmap_tags:\ndepth=64\nbusy=12\n")
	f.Fuzz(func(t *testing.T, text string) {
		if tags, inUse, ok := parseTags(text); ok && (tags < 1 || inUse < 0) {
			t.Errorf("%d of %d", inUse, tags)
		}
	})
}
