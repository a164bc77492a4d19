package scenario

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
)

// A meter on the host does what it does here.
func TestHostMeter(t *testing.T) {
	store, err := mem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	unit, err := lun.NewDisk(store, lun.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer unit.Close()
	w := &witness{Unit: unit}
	v := &virtioHosts{luns: map[string]*virtioLUN{"a": {target.NewMeter(w), w}}}
	answers, to := io.Pipe()
	link := newHostLink(func(e Event) {
		b, err := json.Marshal(v.answer(*e.Ask))
		if err != nil {
			t.Error(err)
		}
		go fmt.Fprintf(to, "%s\n", b)
	}, answers, true, func(err error) { t.Errorf("it failed: %v", err) })
	m := &hostMeter{hostLink: link, scenario: "a"}
	m.Hold()
	if !m.Holds() {
		t.Error("it doesn't hold")
	}
	m.Mark()
	m.Release()
	c := lun.Command{CDB: make([]byte, 6)}
	v.luns["a"].meter.Execute(&c)
	if m.Holds() || m.Done() != 1 || m.InFlight() != 0 || m.Most() != 1 {
		t.Errorf("%+v", m.last)
	}
}

// A host that answers with something else is asked once.
func TestHostGone(t *testing.T) {
	for answer, want := range map[string]string{
		"":                                 "EOF",
		"nothing\n":                        "invalid character",
		`{"in_flight":"many"}` + "\n":      "cannot unmarshal",
		`{"error":"no LUN is served"}`:     "EOF",
		`{"error":"no LUN served"}` + "\n": "no LUN served",
	} {
		asked, failures := 0, []string{}
		link := newHostLink(func(Event) { asked++ }, strings.NewReader(answer), false, func(err error) { failures = append(failures, err.Error()) })
		m := &hostMeter{hostLink: link, scenario: "a"}
		m.Hold()
		if n := m.InFlight(); n != 0 || asked != 1 {
			t.Errorf("%q: %d in flight, asked %d times", answer, n, asked)
		}
		if len(failures) != 1 || !strings.Contains(failures[0], want) {
			t.Errorf("%q: failed with %q, want %q", answer, failures, want)
		}
	}
	v := &virtioHosts{luns: map[string]*virtioLUN{"a": {}}}
	if a := v.answer(Ask{Scenario: "b"}); !strings.Contains(a.Error, `no LUN is served for "b"`) {
		t.Errorf("%+v", a)
	}
	if a := v.answer(Ask{Scenario: "a", Do: "burn"}); !strings.Contains(a.Error, `"burn" can't be asked for`) {
		t.Errorf("%+v", a)
	}
}
