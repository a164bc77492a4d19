package lun_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"lunlab/lun"
)

func TestUnitAttentions(t *testing.T) {
	d, err := lun.NewDisk(mustMem(t, 1<<20), lun.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t, d, &lun.Nexus{Name: "a"}}
	h.do("12 00 00 00ff 00", nil, 255).good() // leaves it pending
	h.do("a0 00 00 000000 00000100 00 00", nil, 256).good()
	h.do("25 00 00000000 0000 00 00", nil, 8).attention(lun.ASCPowerOnOrReset)
	h.do("25 00 00000000 0000 00 00", nil, 8).good()
	o := h.other("b")
	d.Notify(h.n, lun.CommandsCleared)
	d.Notify(nil, lun.LUNsChanged)
	d.Notify(nil, lun.LUNsChanged)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCReportedLUNsDataHasChanged)
	h.do("00 00 00 00 00 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCCommandsCleared)
	// REQUEST SENSE reports it as data, and clears it.
	o.do("03 00 00 00 12 00", nil, 255).is("7000 06 00000000 0a 00000000 3f0e 00000000")
	o.do("03 01 00 00 ff 00", nil, 255).is("72000000 00000000")
	o.do("00 00 00 00 00 00", nil, 0).good()
	// A reset makes what was pending moot.
	d.Notify(nil, lun.LUNsChanged)
	d.Notify(o.n, lun.LogicalUnitReset)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	o.do("00 00 00 00 00 00", nil, 0).good()
	// But for what goes before it (SAM-5 5.14.2).
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	h.do("3b 05 00 000000 000200 00", make([]byte, 512), 0).good()
	d.Notify(o.n, lun.LogicalUnitReset)
	d.Notify(o.n, lun.LogicalUnitReset)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCMicrocodeChanged)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	o.do("00 00 00 00 00 00", nil, 0).good()
	// A nexus that was lost is a new one.
	d.Notify(o.n, lun.NexusLoss)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	d.Notify(&lun.Nexus{}, lun.NexusLoss)
	// An unknown command gets it too.
	d.Notify(nil, lun.LUNsChanged)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	h.do("ff 00 00 00 00 00", nil, 0).attention(lun.ASCReportedLUNsDataHasChanged)
}

func TestStartStop(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	h.do("1b 00 00 00 00 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).fails(lun.NotReady, lun.ASCNotReadyInitializingRequired)
	o.run(transfer(0x28, 0, 1, 0), nil, 512).fails(lun.NotReady, lun.ASCNotReadyInitializingRequired)
	o.do("12 00 00 00ff 00", nil, 255).good()
	o.do("03 00 00 00 12 00", nil, 255).is("7000 02 00000000 0a 00000000 0402 00000000")
	h.do("1b 00 00 00 01 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).good()
	h.do("1b 00 00 00 02 00", nil, 0).field(4, 1) // LOEJ without removable media
	for _, cdb := range []string{"1b 00 00 00 10 00", "1b 01 00 02 20 00", "1b 00 00 01 30 00", "1b 00 00 00 a0 00", "1b 00 00 00 b0 00", "1b 00 00 00 70 00"} {
		h.do(cdb, nil, 0).good()
	}
	h.do("1b 00 00 00 40 00", nil, 0).field(4, 7)
	h.do("1b 00 00 02 30 00", nil, 0).field(3, 3)
	h.do("1b 00 00 01 00 00", nil, 0).field(3, 3)
	h.run(transfer(0x28, 0, 1, 0), nil, 512).good()
}

func TestRemovable(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Removable: true})
	o := h.other("b")
	h.run(transfer(0x2a, 5, 1, 0), pattern(512, 1), 0).good()
	o.do("1e 00 00 00 01 00", nil, 0).good()
	h.do("1b 00 00 00 02 00", nil, 0).fails(lun.IllegalRequest, lun.ASCMediumRemovalPrevented)
	h.do("1b 00 00 00 03 00", nil, 0).good() // loads only
	o.do("1e 00 00 00 00 00", nil, 0).good()
	h.do("1b 00 00 00 02 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).fails(lun.NotReady, lun.ASCMediumNotPresent)
	o.do("25 00 00000000 0000 00 00", nil, 8).fails(lun.NotReady, lun.ASCMediumNotPresent)
	o.do("1b 00 00 00 01 00", nil, 0).fails(lun.NotReady, lun.ASCMediumNotPresent)
	h.do("1b 00 00 00 03 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCMediumMayHaveChanged)
	if a := o.run(transfer(0x28, 5, 1, 0), nil, 512).good(); !bytes.Equal(a.data, pattern(512, 1)) {
		t.Error("the data didn't survive the ejection")
	}
	// It can be stopped and put to sleep, as others are.
	h.do("1b 00 00 00 00 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).fails(lun.NotReady, lun.ASCNotReadyInitializingRequired)
	o.run(transfer(0x28, 5, 1, 0), nil, 512).fails(lun.NotReady, lun.ASCNotReadyInitializingRequired)
	h.do("1b 00 00 00 01 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).good()
	h.do("1b 00 00 00 f0 00", nil, 0).field(4, 7)
	h.do("1b 00 00 09 30 00", nil, 0).field(3, 3)
	h.do("1b 00 00 00 32 00", nil, 0).good() // LOEJ doesn't count
	if got := h.senses(); got != 0x5e04 {
		t.Errorf("%04x in standby", got)
	}
	if h.logPage(0x1a, 0, 1)[8][3] != 1 {
		t.Error("the log doesn't know of it")
	}
	h.do("12 01 8a 00ff 00", nil, 255).good()
	h.do("00 00 00 00 00 00", nil, 0).good()
	// By hand, which also loads where it was stopped and is prevented.
	h.do("1b 00 00 00 00 00", nil, 0).good()
	h.do("1e 00 00 00 01 00", nil, 0).good()
	h.disk.Eject()
	h.do("00 00 00 00 00 00", nil, 0).fails(lun.NotReady, lun.ASCMediumNotPresent)
	h.disk.Load()
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCMediumMayHaveChanged)
	h.do("00 00 00 00 00 00", nil, 0).good()
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCMediumMayHaveChanged)
	h.disk.Eject()
	h.do("1b 00 00 00 03 00", nil, 0).good()
	h.do("00 00 00 00 00 00", nil, 0).good()
	// The prevention ends with the nexus, or with a reset.
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCMediumMayHaveChanged)
	h.disk.Notify(h.n, lun.NexusLoss)
	o.do("1b 00 00 00 02 00", nil, 0).good()
	o.do("1b 00 00 00 03 00", nil, 0).good()
	o.do("1e 00 00 00 01 00", nil, 0).good()
	h.disk.Notify(nil, lun.LogicalUnitReset)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	o.do("1b 00 00 00 02 00", nil, 0).good()
}

// needsNoMedium are the commands, by operation code and service action, that are
// executed whether the medium is there and turns, or not.
var needsNoMedium = strings.Fields("03 12 15 16 17 1a 1b 1c 1e 3b 3c 4c 4d 55 56 57 5a " +
	"48/1f 5e/00 5e/01 5e/02 5e/03 5f/00 5f/01 5f/02 5f/03 5f/04 5f/05 5f/06 5f/07 5f/08 " +
	"83/1c 84/00 84/03 84/04 84/05 84/06 84/07 a0 a2 a3/05 a3/0a a3/0c a3/0d a3/0f a4/06 a4/0a a4/0f")

// Every other command is refused while there is no medium, or it is stopped.
func TestNotReady(t *testing.T) {
	for _, o := range fuzzKinds {
		o.EraseTime = 0
		for _, c := range []struct {
			cdb  string
			code uint16
		}{{"1b 00 00 00 02 00", lun.ASCMediumNotPresent}, {"1b 00 00 00 00 00", lun.ASCNotReadyInitializingRequired}} {
			o.Removable = c.code == lun.ASCMediumNotPresent
			h := newHost(t, 1<<20, o)
			h.do(c.cdb, nil, 0).good()
			for _, u := range commandsOf(t, o) {
				if slices.Contains(needsNoMedium, u.name()) {
					continue
				}
				cdb := u.from(t)
				out, _ := h.disk.DataLength(cdb)
				a := h.run(cdb, make([]byte, min(out, 1<<20)), 512)
				if a.status != lun.CheckCondition || a.sense[2] != byte(lun.NotReady) || binary.BigEndian.Uint16(a.sense[12:]) != c.code {
					t.Errorf("%x: status %#x, sense %x; want NOT READY %04x", cdb, a.status, a.sense, c.code)
				}
			}
		}
	}
}

func TestReserve(t *testing.T) {
	for _, c := range []struct{ reserve, release string }{
		{"16 00 00 00 00 00", "17 00 00 00 00 00"},
		{"56 00 0000000000 0000 00", "57 00 0000000000 0000 00"},
	} {
		h := newHost(t, 1<<20, lun.DiskOptions{})
		o := h.other("b")
		h.do(c.reserve, nil, 0).good()
		h.do(c.reserve, nil, 0).good()
		for _, cdb := range []string{c.reserve, "00 00 00 00 00 00", "28 00 00000000 00 0001 00", "2a 00 00000000 00 0001 00",
			"1a 00 08 00 ff 00", "5e 00 0000000000 00ff 00", "5f 00 00 0000 00000018 00", "1b 00 00 00 00 00"} {
			o.do(cdb, make([]byte, 512), 512).conflict()
		}
		o.do("12 00 00 00ff 00", nil, 255).good()
		o.do("25 00 00000000 0000 00 00", nil, 8).good()
		o.do(c.release, nil, 0).good()
		o.do("00 00 00 00 00 00", nil, 0).conflict()
		h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
		h.do(c.release, nil, 0).good()
		o.do(c.reserve, nil, 0).good()
		h.disk.Notify(o.n, lun.NexusLoss)
		h.do("00 00 00 00 00 00", nil, 0).good()
		h.do(c.reserve, nil, 0).good()
		h.disk.Notify(nil, lun.LogicalUnitReset)
		p := h.other("c")
		p.do(c.reserve, nil, 0).good()
	}
}
