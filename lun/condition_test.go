package lun_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
)

// powerPage is the Power Condition page with timers in tenths of a second, those
// that are 0 off.
func powerPage(idleA, standbyZ uint32) string {
	enable := 0
	if idleA > 0 {
		enable |= 2
	}
	if standbyZ > 0 {
		enable |= 1
	}
	return fmt.Sprintf("1a26 00%02x %08x %08x %056x", enable, idleA, standbyZ, 0)
}

// senses returns the additional sense code that REQUEST SENSE tells of.
func (h *host) senses() uint16 {
	h.t.Helper()
	d := h.do("03 00 00 00 ff 00", nil, 255).good().data
	if d[2] != 0 {
		h.t.Fatalf("REQUEST SENSE: %x", d)
	}
	return uint16(d[12])<<8 | uint16(d[13])
}

const longest = 0xffffffff // tenths of a second

func TestPowerTimers(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	wait := func(want uint16) {
		t.Helper()
		for end := time.Now().Add(time.Minute); h.senses() != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%04x after a minute, want %04x", h.senses(), want)
			}
		}
	}
	h.selectPage(0, powerPage(1, longest)).good()
	wait(0x5e01)
	// What doesn't need the medium to turn doesn't have it leave.
	h.do("00 00 00 00 00 00", nil, 0).good()
	h.do("25 00 00000000 0000 00 00", nil, 8).good()
	if got := h.senses(); got != 0x5e01 {
		t.Errorf("%04x after commands that need no medium", got)
	}
	// The deepest of those whose time has come.
	h.selectPage(0, powerPage(1, 2)).good()
	wait(0x5e02)
	h.selectPage(0, powerPage(longest, longest)).good()
	h.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	if got := h.senses(); got != 0 {
		t.Errorf("%04x long before any timer", got)
	}
	// One whose timer is out of the initiator's hands again.
	h.selectPage(0, powerPage(1, 0)).good()
	h.do("1b 00 00 00 10 00", nil, 0).good() // ACTIVE
	if got := h.senses(); got != 0 {
		t.Errorf("%04x while START STOP UNIT is in control", got)
	}
	h.do("1b 00 00 00 70 00", nil, 0).good() // LU_CONTROL
	wait(0x5e01)
	h.disk.Notify(nil, lun.LogicalUnitReset)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	if got := h.senses(); got != 0 {
		t.Errorf("%04x after a reset to a page without timers", got)
	}
}

func TestPowerByCommand(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	for _, c := range []struct {
		cdb  string
		want uint16
	}{
		{"1b 00 00 00 20 00", 0x5e03},
		{"1b 00 00 01 20 00", 0x5e06},
		{"1b 00 00 02 20 00", 0x5e08},
		{"1b 00 00 00 30 00", 0x5e04},
		{"1b 00 00 01 30 00", 0x5e0a},
		{"1b 00 00 00 a0 00", 0x5e01}, // FORCE_IDLE_0: as if the timer had run out
		{"1b 00 00 01 b0 00", 0x5e09},
	} {
		h.do(c.cdb, nil, 0).good()
		if got := h.senses(); got != c.want {
			t.Errorf("%s: %04x, want %04x", c.cdb, got, c.want)
		}
		h.do("00 00 00 00 00 00", nil, 0).good()
		if got := h.senses(); got != c.want {
			t.Errorf("%s: %04x after TEST UNIT READY, want %04x", c.cdb, got, c.want)
		}
		h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
		if got := h.senses(); got != 0 {
			t.Errorf("%s: %04x after a WRITE", c.cdb, got)
		}
	}
	// A unit that is stopped is started by them.
	h.do("1b 00 00 00 00 00", nil, 0).good()
	h.do("1b 00 00 00 20 00", nil, 0).good()
	h.do("00 00 00 00 00 00", nil, 0).good()
	// And START ends them.
	h.do("1b 00 00 00 01 00", nil, 0).good()
	if got := h.senses(); got != 0 {
		t.Errorf("%04x after START", got)
	}
}

// TestPowerTransitions counts how often each condition was entered.
func TestPowerTransitions(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("12 01 8a 00ff 00", nil, 255).is("008a000e 0307 000000000000000000000000")
	counts := func(want ...byte) {
		t.Helper()
		p := h.logPage(0x1a, 0, 1)
		for i, code := range []uint16{1, 2, 3, 4, 8, 9} {
			if v := p[code]; len(v) != 4 || v[3] != want[i] {
				t.Errorf("parameter %d is %x, want %d", code, v, want[i])
			}
		}
	}
	counts(0, 0, 0, 0, 0, 0)
	for _, cdb := range []string{"1b 00 00 00 20 00", "1b 00 00 00 20 00", "1b 00 00 02 20 00", "1b 00 00 00 30 00"} {
		h.do(cdb, nil, 0).good()
	}
	counts(0, 1, 0, 1, 1, 0)
	h.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	counts(1, 1, 0, 1, 1, 0)
	// Two timers run out. Then one at once, which passes over another.
	h.do("1b 00 00 00 70 00", nil, 0).good() // LU_CONTROL
	h.selectPage(0, powerPage(1, 2)).good()
	for end := time.Now().Add(time.Minute); h.senses() != 0x5e02; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in standby after a minute")
		}
	}
	counts(1, 2, 0, 1, 2, 0)
	h.selectPage(0, powerPage(longest, 0)).good()
	counts(2, 2, 0, 1, 2, 0)
	h.selectPage(0, "1a26 0003 00000002 00000000 "+strings.Repeat("00", 28)).good()
	counts(2, 2, 0, 1, 3, 0)
}

// A cycle is counted when it happens, not when it is asked for again.
func TestStartStopCycles(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	for range 2 {
		for _, start := range []string{"00", "00", "01", "01"} {
			h.do("1b 00 00 00 "+start+" 00", nil, 0).good()
		}
	}
	p := h.logPage(0x0e, 0, 1)
	if got := [2]byte{p[4][3], p[6][3]}; got != [2]byte{2, 2} {
		t.Errorf("%d start-stop and %d load-unload cycles, want 2 and 2", got[0], got[1])
	}
}

// TestException tests informational exceptions the way that initiators do.
func TestException(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	logged := func(want uint16) {
		t.Helper()
		if v := h.logPage(0x2f, 0, 1)[0]; uint16(v[0])<<8|uint16(v[1]) != want || v[2] != 0xff {
			t.Errorf("the log says %x, want %04x and no temperature", v, want)
		}
	}
	logged(0)
	h.selectPage(0, "1c0a 04060000000000000000").good() // TEST; MRIE 6
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCModeParametersChanged)
	for _, x := range []*host{h, o} {
		if got := x.senses(); got != lun.ASCFailurePredictionFalse {
			t.Errorf("REQUEST SENSE: %04x", got)
		}
		x.do("00 00 00 00 00 00", nil, 0).good()
	}
	logged(lun.ASCFailurePredictionFalse)
	h.selectPage(0, "1c0a 04020000000000000000").good() // MRIE 2: a unit attention for all
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCFailurePredictionFalse)
	h.do("00 00 00 00 00 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCModeParametersChanged)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCFailurePredictionFalse)
	h.selectPage(0, "1c0a 0c020000000000000000").parameter(4+2, 2) // TEST and DEXCPT
	h.selectPage(0, "1c0a 00010000000000000000").parameter(4+3, 3)
	// MRIE 3 to 5: with the first command that is done, and its data.
	h.run(transfer(0x2a, 1, 1, 0), pattern(512, 7), 0).good()
	report := func(mrie int) {
		t.Helper()
		h.selectPage(0, fmt.Sprintf("1c0a 04%02x0000000000000000", mrie)).good()
		h.do("12 00 00 0024 00", nil, 36).good()
	}
	reported := func(key lun.SenseKey) {
		t.Helper()
		if a := h.run(transfer(0x28, 1, 1, 0), nil, 512).fails(key, lun.ASCFailurePredictionFalse); !bytes.Equal(a.data, pattern(512, 7)) {
			t.Errorf("%d bytes read, or others than were written", len(a.data))
		}
		h.do("00 00 00 00 00 00", nil, 0).good()
	}
	report(4)
	reported(lun.RecoveredError)
	report(5)
	reported(lun.NoSense)
	report(3)
	h.do("00 00 00 00 00 00", nil, 0).good() // recovered errors aren't to be reported
	report(0)
	h.selectPage(0, "010a c4000000000000000000").good() // PER: they are
	report(3)
	reported(lun.RecoveredError)
	h.selectPage(0, "1c0a 08000000000000000000").good()
	if got := h.senses(); got != 0 {
		t.Errorf("REQUEST SENSE at the end: %04x", got)
	}
	logged(0)
}

// TestPortPages has what depends on the transport.
func TestPortPages(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("1a 08 18 00 ff 00", nil, 255).is("0b001000 9806 050000000000")
	h.do("1a 08 19 00 ff 00", nil, 255).is("0b001000 9906 050000000000")
	h.do("1a 08 59 00 ff 00", nil, 255).is("0b001000 9906 000000000000")
	h.do("4d 00 58 00 00 0000 00ff 00", nil, 255).is("18000008 0001 03 04 05000000")
	h.selectPage(0, "1806 050000000000").good()
	h.selectPage(0, "1806 060000000000").parameter(6, 1)
	sas := &host{t: t, disk: h.disk, n: &lun.Nexus{Name: "sas", TargetPort: 2, Initiator: append([]byte{6}, make([]byte, 23)...)}}
	sas.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	sas.do("1a 08 18 00 ff 00", nil, 255).is("0b001000 9806 060000000000")
	sas.do("1a 08 19 00 ff 00", nil, 255).is("13001000 990e 060007d0 00000000000000000000")
	sas.do("4d 00 58 00 00 0000 00ff 00", nil, 255).is("18000008 0002 03 04 06000000")
	none := &host{t: t, disk: h.disk, n: &lun.Nexus{Name: "none", TargetPort: 1}}
	none.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	none.do("1a 08 18 00 ff 00", nil, 255).field(2, 5)
}
