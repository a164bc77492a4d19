package fault_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lunlab/lun"
	"lunlab/lun/fault"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		text string
		want fault.Rule // Text and Seed apart
	}{
		{"status=busy", fault.Rule{Act: fault.Answer, Status: lun.Busy}},
		{"status=0x28 above=8", fault.Rule{Act: fault.Answer, Status: lun.TaskSetFull, Above: 8}},
		{"cmd=READ(10),write-16,0x9e/0x10,0xc0 never", fault.Rule{Act: fault.Never,
			Commands: []fault.Command{{Code: 0x28, Action: -1}, {Code: 0x8a, Action: -1}, {Code: 0x9e, Action: 0x10}, {Code: 0xc0, Action: -1}}}},
		{"cmd=persistent-reserve-out,readcapacity16 never execute", fault.Rule{Act: fault.Never, Execute: true,
			Commands: []fault.Command{{Code: 0x5f, Action: -1}, {Code: 0x9e, Action: 0x10}}}},
		{"lba=0x10-31 medium-error", fault.Rule{Act: fault.MediumError, Blocks: &fault.Blocks{First: 16, Last: 31}}},
		{"lba=5 medium-error", fault.Rule{Act: fault.MediumError, Blocks: &fault.Blocks{First: 5, Last: 5}}},
		{"lba=18446744073709551615+1 stall", fault.Rule{Act: fault.Stall, Blocks: &fault.Blocks{First: math.MaxUint64, Last: math.MaxUint64}}},
		{"sense=medium-error/11/04 info=lba descriptor", fault.Rule{Act: fault.Answer, Status: lun.CheckCondition,
			Sense: lun.Sense{Key: lun.MediumError, Code: 0x1104}, InfoLBA: true, Descriptor: true}},
		{"sense=5/24/0 field=cdb:2.7 info=0x123456789", fault.Rule{Act: fault.Answer, Status: lun.CheckCondition,
			Sense: lun.Sense{Key: lun.IllegalRequest, Code: 0x2400, HasInfo: true, Info: 0x123456789, Specific: [3]byte{0xcf, 0, 2}}}},
		{"sense=illegal-request/26/00 field=data:300", fault.Rule{Act: fault.Answer, Status: lun.CheckCondition,
			Sense: lun.Sense{Key: lun.IllegalRequest, Code: 0x2600, Specific: [3]byte{0x80, 1, 44}}}},
		{"sense=b/4b/03 deferred execute", fault.Rule{Act: fault.Answer, Status: lun.CheckCondition, Execute: true,
			Sense: lun.Sense{Key: lun.AbortedCommand, Code: 0x4b03, Deferred: true}}},
		{"attention=2a/09 initiator=iqn.*:a count=3", fault.Rule{Act: fault.Attention, Sense: lun.Sense{Key: lun.UnitAttention, Code: 0x2a09}, Initiator: "iqn.*:a", Count: 3}},
		{"answer-after-abort after=1s for=2m", fault.Rule{Act: fault.AnswerAfterAbort, After: time.Second, For: 2 * time.Minute}},
		{"short=0 nth=7", fault.Rule{Act: fault.Short, Nth: 7}},
		{"corrupt=3", fault.Rule{Act: fault.Corrupt, Corrupt: &fault.Corruption{Offset: 3, Length: 1, Value: 0xff}}},
		{"corrupt=0x10+4^0x01", fault.Rule{Act: fault.Corrupt, Corrupt: &fault.Corruption{Offset: 16, Length: 4, Value: 1}}},
		{"corrupt=0+512=0", fault.Rule{Act: fault.Corrupt, Corrupt: &fault.Corruption{Length: 512, Set: true}}},
		{"drop=session probability=2.5% every=3", fault.Rule{Act: fault.Drop, Link: lun.SessionLink, Probability: 0.025, Every: 3}},
		{"delay=5ms", fault.Rule{Delay: fault.Fixed(5 * time.Millisecond)}},
		{"delay=uniform:1ms,2ms status=busy", fault.Rule{Act: fault.Answer, Status: lun.Busy, Delay: fault.Uniform{Low: time.Millisecond, High: 2 * time.Millisecond}}},
		{"delay=normal:5ms,1ms", fault.Rule{Delay: fault.Normal{Mean: 5 * time.Millisecond, Deviation: time.Millisecond}}},
		{"delay=lognormal:5ms,0.5", fault.Rule{Delay: fault.LogNormal{Median: 5 * time.Millisecond, Sigma: 0.5}}},
		{"delay=exponential:1s", fault.Rule{Delay: fault.Exponential{Mean: time.Second}}},
		{"delay=percentiles:50=1ms,100=1s", fault.Rule{Delay: fault.Percentiles{{Percent: 50, Time: time.Millisecond}, {Percent: 100, Time: time.Second}}}},
	} {
		got, err := fault.Parse(" " + tt.text + "\t")
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		tt.want.Text, tt.want.Seed = tt.text, 1
		if d := cmp.Diff(&tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, d)
		}
	}
	if r, err := fault.Parse("status=busy probability=0.5 seed=9"); err != nil || r.Seed != 9 {
		t.Errorf("seed: %+v, %v", r, err)
	}
	// A name without its length stands for all lengths.
	r, err := fault.Parse("cmd=read status=busy")
	if err != nil {
		t.Fatal(err)
	}
	codes := map[uint8]bool{}
	for _, c := range r.Commands {
		codes[c.Code] = true
	}
	for _, want := range []uint8{0x08, 0x28, 0x7f, 0x88, 0xa8} {
		if !codes[want] {
			t.Errorf("read doesn't mean operation code %#x: %v", want, r.Commands)
		}
	}
	if len(codes) != 5 {
		t.Errorf("read means %v", r.Commands)
	}
}

func TestParseMistakes(t *testing.T) {
	for _, tt := range []struct {
		text   string
		offset int
		want   string
	}{
		{"", 0, "doesn't say what becomes of the command"},
		{"cmd=read", 0, "doesn't say what becomes of the command"},
		{"cmd=read bussy", 9, `unknown word "bussy"; there are cmd=… lba=…`},
		{"cmd=raed status=busy", 0, `no command is called "raed"`},
		{"cmd=report-luns status=busy", 0, "answered by the target"},
		{"cmd=0xa0 status=busy", 0, "answered by the target"},
		{"cmd=0x100 status=busy", 0, "no command is called"},
		{"cmd=0x9e/0x10000 status=busy", 0, "service action"},
		{"lba=9-3 medium-error", 0, "want a block N"},
		{"lba=1+0 medium-error", 0, "want a block N"},
		{"lba=2+18446744073709551615 medium-error", 0, "want a block N"},
		{"lba=-1 medium-error", 0, "want a block N"},
		{"medium-error", 0, "medium-error is for a rule with lba=…"},
		{"status=busy never", 12, "status and never can't be in one rule"},
		{"never status=busy", 6, "never and status can't be in one rule"},
		{"status=busy status=busy", 12, "status is there twice"},
		{"status=2", 0, "comes with sense data"},
		{"status=0x100", 0, "want good"},
		{"status", 0, "status has a value"},
		{"never=1", 0, "never has no value"},
		{"sense=3/11", 0, "want KEY/ASC/ASCQ"},
		{"sense=10/11/00", 0, "want KEY/ASC/ASCQ"},
		{"sense=3/100/00", 0, "want KEY/ASC/ASCQ"},
		{"status=busy info=1", 12, "info is for a rule with sense=…"},
		{"sense=3/11/00 info=first", 14, "want a number, or lba"},
		{"sense=3/11/00 field=cdb:1", 14, "field is for sense=illegal-request"},
		{"sense=5/24/00 field=cdb:1.8", 14, "want cdb:BYTE"},
		{"sense=5/24/00 field=cbd:1", 14, "want cdb:BYTE"},
		{"medium-error lba=1 execute", 19, "execute is for a rule with status=… or sense=… or never"},
		{"attention=29", 0, "want ASC/ASCQ"},
		{"initiator=[a status=busy", 0, "want a pattern"},
		{"above=0 status=busy", 0, "want a number from 1 to"},
		{"nth=0 status=busy", 0, "want a number from 1 on"},
		{"nth=1 every=2 status=busy", 6, "nth and every can't be in one rule"},
		{"probability=0 status=busy", 0, "want a chance"},
		{"probability=101% status=busy", 0, "want a chance"},
		{"probability=NaN status=busy", 0, "want a chance"},
		{"seed=1 status=busy", 0, "seed is for a rule with probability"},
		{"for=0s status=busy", 0, "want a time above 0"},
		{"after=25h status=busy", 0, "want a time"},
		{"short=-1", 0, "want a number"},
		{"corrupt=0^0", 0, "want OFFSET+LENGTH"},
		{"corrupt=0+0", 0, "want OFFSET+LENGTH"},
		{"corrupt=0+1=256", 0, "want OFFSET+LENGTH"},
		{"drop=cable", 0, "want connection or session"},
		{"delay=5", 0, "want a time"},
		{"delay=-5ms", 0, "want a time"},
		{"delay=uniform:2ms,1ms", 0, "lower time first"},
		{"delay=uniform:2ms", 0, "want a time such as 5ms, or uniform"},
		{"delay=gamma:1ms,2ms", 0, "want a time such as 5ms, or uniform"},
		{"delay=lognormal:5ms,-1", 0, "want a sigma"},
		{"delay=percentiles:50=1ms", 0, "want 100=TIME at the end"},
		{"delay=percentiles:50=1ms,50=2ms,100=3ms", 0, "ascending"},
		{"delay=percentiles:0=1ms,100=3ms", 0, "want PERCENT=TIME"},
		{"delay=percentiles:", 0, "want PERCENT=TIME"},
		{"never delay=1s", 6, "a delay means nothing"},
		{strings.Repeat("x", 5000), 0, "more than 4096"},
	} {
		_, err := fault.Parse(tt.text)
		var bad *fault.SyntaxError
		if !errors.As(err, &bad) || bad.Offset != tt.offset || !strings.Contains(bad.Msg, tt.want) {
			t.Errorf("%s: %v at %+v, want %s at %d", tt.text, err, bad, tt.want, tt.offset)
		}
	}
}

// FuzzParse sees that a rule's text stands for it, and that no rule that can be
// written makes a unit panic.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"cmd=read,0x9e/0x10 lba=1-2 medium-error", "sense=5/24/00 field=cdb:1.2 info=lba execute", "lba=2+3 corrupt=0+4^1 cmd=write10",
		"lba=3 sense=3/11/00 info=lba", "attention=29/00 nth=2", "short=512 every=2", "status=good probability=50% seed=3 count=1", "drop=ring above=1",
	} {
		f.Add(s, []byte{0x28, 0, 0, 0, 0, 2, 0, 0, 4, 0})
	}
	f.Add("lba=3-5 status=busy", []byte{0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0})
	f.Fuzz(func(t *testing.T, text string, cdb []byte) {
		r, err := fault.Parse(text)
		if err != nil {
			var bad *fault.SyntaxError
			if !errors.As(err, &bad) || bad.Offset < 0 || bad.Offset > len(text) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := fault.Parse(r.Text)
		if err != nil {
			t.Fatalf("%q was %q: %v", r.Text, text, err)
		}
		if d := cmp.Diff(r, again); d != "" {
			t.Fatalf("%q was %q:\n%s", r.Text, text, d)
		}
		// Without a Cancel, nothing waits.
		u := fault.New(newDisk(t, 64))
		if _, err := u.Add(r); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			c := lun.Command{Nexus: nexusA, CDB: cdb, DataOut: [][]byte{make([]byte, 100), make([]byte, 3000)}, DataIn: [][]byte{make([]byte, 700)}}
			u.Execute(&c)
		}
		if s := u.Rules()[0]; s.Fired > s.Matched || s.Held != 0 {
			t.Fatalf("%q: %+v", text, s)
		}
	})
}
