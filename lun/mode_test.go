package lun_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"lunlab/lun"
)

const (
	caching = "0812 040000000000000000000000000000000000"
	control = "0a0a 00100040000000000000"
)

// modePage returns one page as MODE SENSE(10) without block descriptors does.
func (h *host) modePage(code, sub byte) []byte {
	h.t.Helper()
	return h.run([]byte{0x5a, 8, code, sub, 0, 0, 0, 1, 0, 0}, nil, 256).good().data[8:]
}

// selectPage sends a page, given in hexadecimal, with MODE SELECT(6).
func (h *host) selectPage(flags byte, page string) answer {
	h.t.Helper()
	list := cat(make([]byte, 4), unhex(h.t, page))
	return h.run([]byte{0x15, 0x10 | flags, 0, 0, byte(len(list)), 0}, list, 0)
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestModeSense(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("1a 00 08 00 ff 00", nil, 255).is("1f001008 00000800 00000200 8812" + "040000000000000000000000000000000000")
	h.do("1a 08 08 00 ff 00", nil, 255).is("17001000 8812" + "040000000000000000000000000000000000")
	h.do("5a 10 0a 00 000000 00ff 00", nil, 255).is("0022 0010 0100 0010" + "0000000000000800 00000000 00000200" + "8a0a 00100040000000000000")
	h.do("5a 08 0a 01 000000 00ff 00", nil, 255).is("0026 0010 0000 0000 ca01001c" + hex.EncodeToString(make([]byte, 28)))
	// What can be changed.
	h.do("1a 08 4a 00 ff 00", nil, 255).is("0f001000 8a0a 24160840000000000000")
	if a := h.do("1a 08 08 00 04 00", nil, 255).good(); a.in != 4 || a.data[0] != 0x17 {
		t.Errorf("allocation length 4: %x", a.data)
	}
	h.do("1a 08 08 00 00 00", nil, 0).good()
	h.do("1a 08 05 00 ff 00", nil, 255).field(2, 5)
	h.do("1a 08 08 07 ff 00", nil, 255).field(3, 7)
	// Every page, each once, in order, that fills what it says.
	all := h.do("5a 08 3f ff 000000 ffff 00", nil, 65535).good().data[8:]
	last := -1
	for len(all) > 0 {
		code, sub, n := int(all[0]&0x3f), 0, 2+int(all[1])
		if all[0]&0x40 != 0 {
			sub, n = int(all[1]), 4+int(all[3])
		}
		if at := code<<8 | sub; at <= last {
			t.Errorf("page %02x/%02x is out of order", code, sub)
		} else {
			last = at
		}
		if one := h.modePage(byte(code), byte(sub)); !bytes.Equal(one, all[:n]) {
			t.Errorf("page %02x/%02x is %x alone, %x among all", code, sub, one, all[:n])
		}
		all = all[n:]
	}
}

func TestControlPage(t *testing.T) {
	for _, c := range []struct {
		o                   lun.DiskOptions
		current, changeable string
	}{
		{lun.DiskOptions{}, "8a0a 00100040000000000000", "8a0a 24160840000000000000"},
		{lun.DiskOptions{Protection: 1}, "8a0a 001000c0000000000000", "8a0a 24160840000000000000"}, // ATO
	} {
		h := newHost(t, 1<<20, c.o)
		h.do("1a 08 0a 00 ff 00", nil, 255).is("0f001000" + c.current)
		h.do("1a 08 4a 00 ff 00", nil, 255).is("0f001000" + c.changeable)
		h.do("1a 08 8a 00 ff 00", nil, 255).is("0f001000" + c.current) // at first
		h.do("1a 08 ca 00 ff 00", nil, 255).is("0f001000" + c.current) // saved
	}
}

// TestTaskRules has the Control page steer the task set.
func TestTaskRules(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	for _, c := range []struct {
		page string
		want lun.TaskRules
	}{
		{control, lun.TaskRules{AbortedStatus: true}},
		{"0a0a 20100000000000000000", lun.TaskRules{PerNexus: true}},
		{"0a0a 00000000000000000000", lun.TaskRules{Restricted: true}},
		{"0a0a 00120000000000000000", lun.TaskRules{OnError: lun.AbortAll}},
		{"0a0a 00160000000000000000", lun.TaskRules{OnError: lun.AbortNexus}},
	} {
		h.selectPage(0, c.page).good()
		if got := h.disk.TaskControl().Rules(); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.page, got, c.want)
		}
	}
	h.selectPage(0, "0a0a 00140000000000000000").parameter(4+2+1, 2) // QERR 10b
	h.selectPage(0, "0a0a 40100000000000000000").parameter(4+2, 6)
}

// TestAttentionOrder has the greater events told of first (SAM-5 5.14.2).
func TestAttentionOrder(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []lun.Event
		want   []uint16
	}{
		{"a nexus loss before others", []lun.Event{lun.CommandsLost, lun.NexusReset, lun.CommandsLost}, []uint16{lun.ASCNexusLoss, lun.ASCCommandsCleared}},
		{"a reset in place of others", []lun.Event{lun.CommandsLost, lun.NexusReset, lun.LogicalUnitReset}, []uint16{lun.ASCBusDeviceReset}},
		{"the greater reset", []lun.Event{lun.HardReset, lun.LogicalUnitReset, lun.CommandsLost}, []uint16{lun.ASCPowerOnOrReset, lun.ASCCommandsCleared}},
		{"in any order", []lun.Event{lun.LogicalUnitReset, lun.HardReset}, []uint16{lun.ASCPowerOnOrReset}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, 1<<20, lun.DiskOptions{})
			h.t = t
			for _, e := range c.events {
				h.disk.Notify(h.n, e)
			}
			if n, first := h.disk.Attention(h.n); n != len(c.want) || first.Code != c.want[0] {
				t.Errorf("%d attentions, the first %04x; want %d, %04x", n, first.Code, len(c.want), c.want[0])
			}
			for _, code := range c.want {
				h.do("00 00 00 00 00 00", nil, 0).attention(code)
			}
			h.do("00 00 00 00 00 00", nil, 0).good()
			if n, _ := h.disk.Attention(h.n); n != 0 {
				t.Errorf("%d attentions are left", n)
			}
		})
	}
}

func TestModeSelect(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("iqn.2026-01.test:b")
	h.selectPage(0, caching).good()
	o.do("00 00 00 00 00 00", nil, 0).good() // nothing was changed
	h.selectPage(0, "0812 000000000000000000000000000000000000").good()
	h.do("00 00 00 00 00 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCModeParametersChanged)
	if got := h.modePage(8, 0)[2]; got != 0 {
		t.Errorf("WCE byte %#x after it was cleared", got)
	}
	// All or nothing: the second page is wrong.
	h.selectPage(0, caching+"0a0a ff100040000000000000").parameter(4+20+2, 7)
	if got := h.modePage(8, 0)[2]; got != 0 {
		t.Error("a MODE SELECT that failed changed a page")
	}
	h.selectPage(0, "0812 010000000000000000000000000000000000").parameter(6, 0)
	h.selectPage(0, "0511 0000").parameter(4, 5)
	h.selectPage(0, "0811 0000").parameter(5, 7)
	h.selectPage(0, "0812 0000").fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.selectPage(0, "08").fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.selectPage(0, "4a0a 00").fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("15 00 0000 04 00", make([]byte, 4), 0).field(1, 4)
	h.do("15 10 0000 00 00", nil, 0).good()
	h.do("15 10 0000 04 00", make([]byte, 3), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	// MODE SELECT(10), with block descriptors of both sizes.
	for _, c := range []struct {
		list string
		ok   bool
		at   int
	}{
		{"0000 0000 0000 0008 00000800 00000200" + caching, true, 0},
		{"0000 0000 0000 0008 00000000 00000200" + caching, true, 0},
		{"0000 0000 0100 0010 0000000000000800 00000000 00000200" + caching, true, 0},
		{"0000 0000 0000 0008 00000801 00000200", false, 8},
		{"0000 0000 0000 0008 00000800 00000400", false, 13},
		{"0000 0000 0000 0007 00000800 00001000", false, 7},
	} {
		list := unhex(t, c.list)
		a := h.run(cat([]byte{0x55, 0x10, 0, 0, 0, 0, 0}, be(2, uint64(len(list))), []byte{0}), list, 0)
		if c.ok {
			a.good()
		} else {
			a.parameter(c.at, 7)
		}
	}
}

func TestModeSave(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	const off = "0812 000000000000000000000000000000000000"
	h.selectPage(0, off).good()
	h.disk.Notify(h.n, lun.LogicalUnitReset)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	if got := h.modePage(8, 0)[2]; got != 4 {
		t.Errorf("WCE byte %#x after a reset, want the saved 4", got)
	}
	h.selectPage(1, off).good()
	h.disk.Notify(nil, lun.HardReset)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	if got := h.modePage(8, 0)[2]; got != 0 {
		t.Errorf("WCE byte %#x after a reset, want the saved 0", got)
	}
	h.do("1a 08 88 00 ff 00", nil, 255).is("17001000 8812" + "040000000000000000000000000000000000")
	h.do("1a 08 c8 00 ff 00", nil, 255).is("17001000 8812" + "000000000000000000000000000000000000")
}

// A reset that turns the write cache off flushes it, as MODE SELECT does.
func TestResetFlushes(t *testing.T) {
	for _, e := range []lun.Event{lun.LogicalUnitReset, lun.HardReset} {
		s := &broken{Store: mustMem(t, 1<<20)}
		h := hostOf(t, s, lun.DiskOptions{WriteThrough: true})
		h.disk.Notify(nil, e)
		h.do("00 00 00 00 00 00", nil, 0)
		h.selectPage(0, caching).good() // WCE, not saved
		h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
		if got := s.syncs.Load(); got != 0 {
			t.Errorf("%d syncs before the reset, want 0", got)
		}
		h.disk.Notify(nil, e)
		if got := s.syncs.Load(); got != 1 {
			t.Errorf("%d syncs when the reset turned the write cache off, want 1", got)
		}
		h.disk.Notify(nil, e)
		if got := s.syncs.Load(); got != 1 {
			t.Errorf("%d syncs after a reset that changed nothing, want 1", got)
		}
	}
}

func TestModesAct(t *testing.T) {
	s := &broken{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{})
	block := make([]byte, 512)
	h.run(transfer(0x2a, 0, 1, 0), block, 0).good()
	h.selectPage(0, "0812 000000000000000000000000000000000000").good()
	if got := s.syncs.Load(); got != 1 {
		t.Errorf("%d syncs when the write cache was turned off, want 1", got)
	}
	h.run(transfer(0x2a, 0, 1, 0), block, 0).good()
	if got := s.syncs.Load(); got != 2 {
		t.Errorf("%d syncs after a write without a cache, want 2", got)
	}
	h.selectPage(0, "0a0a 00100840000000000000").good() // SWP
	h.run(transfer(0x2a, 0, 1, 0), block, 0).fails(lun.DataProtect, lun.ASCSoftwareWriteProtected)
	if a := h.do("1a 08 0a 00 ff 00", nil, 255).good(); a.data[2] != 0x90 {
		t.Errorf("device-specific parameter %#x, want WP and DPOFUA", a.data[2])
	}
	h.selectPage(0, "0a0a 04100040000000000000").good() // D_SENSE
	a := h.do("12 00 01 00ff 00", nil, 0)
	if want := unhex(t, "72052400 00000008 02060000 cf000200"); !bytes.Equal(a.sense, want) {
		t.Errorf("sense %x, want %x", a.sense, want)
	}
}
