package lun_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lunlab/lun"
)

const (
	prRegister = iota
	prReserve
	prRelease
	prClear
	prPreempt
	prPreemptAbort
	prIgnore
)

// out is PERSISTENT RESERVE OUT.
func (h *host) prOut(action, kind byte, key, actionKey uint64) answer {
	h.t.Helper()
	list := cat(be(8, key), be(8, actionKey), make([]byte, 8))
	return h.run([]byte{0x5f, action, kind, 0, 0, 0, 0, 0, byte(len(list)), 0}, list, 0)
}

func (h *host) keys() (keys []uint64) {
	h.t.Helper()
	b := h.do("5e 00 0000000000 0fff 00", nil, 4095).good().data
	if int(binary.BigEndian.Uint32(b[4:]))+8 != len(b) {
		h.t.Fatalf("READ KEYS: %x", b)
	}
	for b = b[8:]; len(b) > 0; b = b[8:] {
		keys = append(keys, binary.BigEndian.Uint64(b))
	}
	return keys
}

// reservation returns the key and type of the reservation, 0 without one.
func (h *host) reservation() (key uint64, kind byte) {
	h.t.Helper()
	b := h.do("5e 01 0000000000 0fff 00", nil, 4095).good().data
	if len(b) == 8 {
		return 0, 0
	}
	return binary.BigEndian.Uint64(b[8:]), b[21]
}

func (h *host) wantReservation(key uint64, kind byte) {
	h.t.Helper()
	if k, got := h.reservation(); k != key || got != kind {
		h.t.Fatalf("reservation of type %d by %#x, want %d by %#x", got, k, kind, key)
	}
}

func TestRegister(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	h.prOut(prRegister, 0, 1, 2).conflict()
	h.prOut(prRegister, 0, 0, 0).good()
	h.prOut(prRegister, 0, 0, 0xa).good()
	h.prOut(prRegister, 0, 0, 0xb).conflict()
	h.prOut(prRegister, 0, 0xa, 0xb).good()
	h.prOut(prIgnore, 0, 0x99, 0xc).good()
	o.prOut(prIgnore, 0, 0x99, 0xd).good()
	if got := o.keys(); !slices.Equal(got, []uint64{0xc, 0xd}) {
		t.Errorf("keys %#x", got)
	}
	h.prOut(prRegister, 0, 0xc, 0).good()
	o.prOut(prIgnore, 0, 0, 0).good()
	if got := o.keys(); len(got) != 0 {
		t.Errorf("keys %#x after both were removed", got)
	}
	if got := h.do("5e 00 0000000000 0008 00", nil, 8).good().data; binary.BigEndian.Uint32(got) != 7 {
		t.Errorf("PRGENERATION %d, want 7", binary.BigEndian.Uint32(got))
	}
	h.do("5f 00 00 0000 00000017 00", make([]byte, 23), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("5f 00 00 0000 00000018 00", make([]byte, 23), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("5f 00 00 0000 00000019 00", make([]byte, 25), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("5f 00 00 0000 ffffffff 00", make([]byte, 25), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("5f 08 00 0000 00000018 00", make([]byte, 24), 0).field(1, 4)
	h.do("16 00 00 00 00 00", nil, 0).good()
}

// TestReservationTypes checks who may do what under each type.
func TestReservationTypes(t *testing.T) {
	read, write := transfer(0x28, 0, 1, 0), transfer(0x2a, 0, 1, 0)
	block := make([]byte, 512)
	for _, c := range []struct {
		kind                                 byte
		regRead, regWrite, anyRead, anyWrite bool
	}{
		{1, true, false, true, false},
		{3, false, false, false, false},
		{5, true, true, true, false},
		{6, true, true, false, false},
		{7, true, true, true, false},
		{8, true, true, false, false},
	} {
		t.Run(fmt.Sprint(c.kind), func(t *testing.T) {
			h := newHost(t, 1<<20, lun.DiskOptions{})
			h.t = t
			reg, other := h.other("b"), h.other("c")
			h.prOut(prRegister, 0, 0, 1).good()
			reg.prOut(prRegister, 0, 0, 2).good()
			h.prOut(prReserve, c.kind, 9, 0).conflict()
			other.prOut(prReserve, c.kind, 0, 0).conflict()
			h.prOut(prReserve, c.kind, 1, 0).good()
			all := c.kind >= 7
			if all {
				h.wantReservation(0, c.kind)
				reg.prOut(prReserve, c.kind, 2, 0).good()
			} else {
				h.wantReservation(1, c.kind)
				reg.prOut(prReserve, c.kind, 2, 0).conflict()
			}
			h.prOut(prReserve, c.kind%2+5, 1, 0).conflict()
			late := h.other("d") // a nexus that comes after the reservation
			for _, x := range []struct {
				who  *host
				cdb  []byte
				may  bool
				name string
			}{
				{h, read, true, "holder reads"}, {h, write, true, "holder writes"},
				{reg, read, c.regRead, "registrant reads"}, {reg, write, c.regWrite, "registrant writes"},
				{other, read, c.anyRead, "other reads"}, {other, write, c.anyWrite, "other writes"},
				{late, write, c.anyWrite, "latecomer writes"},
			} {
				a := x.who.run(x.cdb, block, 512)
				if want := map[bool]lun.Status{true: lun.Good, false: lun.ReservationConflict}[x.may]; a.status != want {
					t.Errorf("%s: status %#x, want %#x", x.name, a.status, want)
				}
			}
			for _, cdb := range []string{"00 00 00 00 00 00", "12 00 00 00ff 00", "03 00 00 00 ff 00", "25 00 00000000 0000 00 00", "5e 00 0000000000 00ff 00"} {
				other.do(cdb, nil, 255).good()
			}
			other.do("1b 00 00 00 00 00", nil, 0).conflict()
			other.do("1b 00 00 00 01 00", nil, 0).good()
			// Release.
			if !all {
				reg.prOut(prRelease, c.kind, 2, 0).good()
				h.wantReservation(1, c.kind)
			}
			h.prOut(prRelease, c.kind%2+5, 1, 0).fails(lun.IllegalRequest, lun.ASCInvalidReleaseOfReservation)
			h.prOut(prRelease, c.kind, 1, 0).good()
			h.wantReservation(0, 0)
			if c.kind >= 5 {
				reg.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCReservationsReleased)
			}
			reg.do("00 00 00 00 00 00", nil, 0).good()
			other.run(write, block, 0).good()
		})
	}
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.prOut(prRegister, 0, 0, 1).good()
	h.prOut(prReserve, 0x13, 1, 0).field(2, 7)
	for _, kind := range []byte{0, 2, 4, 9, 15} {
		h.prOut(prReserve, kind, 1, 0).field(2, 3)
	}
}

func TestUnregisterReleases(t *testing.T) {
	for _, kind := range []byte{1, 3, 5, 6, 7, 8} {
		h := newHost(t, 1<<20, lun.DiskOptions{})
		o := h.other("b")
		h.prOut(prRegister, 0, 0, 1).good()
		o.prOut(prRegister, 0, 0, 2).good()
		h.prOut(prReserve, kind, 1, 0).good()
		h.prOut(prRegister, 0, 1, 0).good()
		if kind >= 7 {
			o.wantReservation(0, kind) // o holds it still
			h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).conflict()
			o.prOut(prRegister, 0, 2, 0).good()
		}
		if kind == 5 || kind == 6 {
			o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCReservationsReleased)
		}
		o.wantReservation(0, 0)
		h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
	}
}

func TestClear(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o, p := h.other("b"), h.other("c")
	h.prOut(prRegister, 0, 0, 1).good()
	o.prOut(prRegister, 0, 0, 2).good()
	h.prOut(prReserve, 3, 1, 0).good()
	p.prOut(prClear, 0, 0, 0).conflict()
	o.prOut(prClear, 0, 1, 0).conflict()
	o.prOut(prClear, 0, 2, 0).good()
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCReservationsPreempted)
	p.do("00 00 00 00 00 00", nil, 0).good()
	if keys := h.keys(); len(keys) != 0 {
		t.Errorf("keys %#x", keys)
	}
	h.wantReservation(0, 0)
}

func TestPreempt(t *testing.T) {
	setUp := func(t *testing.T, kind byte) (h, o, p *host) {
		var aborted []*lun.Nexus
		h = newHost(t, 1<<20, lun.DiskOptions{AbortTasks: func(n *lun.Nexus) { aborted = append(aborted, n) }})
		o, p = h.other("b"), h.other("c")
		h.prOut(prRegister, 0, 0, 1).good()
		o.prOut(prRegister, 0, 0, 2).good()
		p.prOut(prRegister, 0, 0, 3).good()
		if kind != 0 {
			h.prOut(prReserve, kind, 1, 0).good()
		}
		t.Cleanup(func() {
			if len(aborted) != 0 {
				t.Errorf("PREEMPT had tasks of %d nexuses aborted", len(aborted))
			}
		})
		return h, o, p
	}
	t.Run("registration only", func(t *testing.T) {
		h, o, p := setUp(t, 5)
		o.prOut(prPreempt, 5, 2, 3).good()
		p.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCRegistrationsPreempted)
		h.wantReservation(1, 5)
		if keys := h.keys(); !slices.Equal(keys, []uint64{1, 2}) {
			t.Errorf("keys %#x", keys)
		}
		p.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).conflict()
		o.prOut(prPreempt, 5, 2, 77).conflict()
		o.prOut(prPreempt, 5, 2, 0).parameter(8, 7)
		p.prOut(prPreempt, 5, 3, 1).conflict()
	})
	t.Run("reservation", func(t *testing.T) {
		h, o, p := setUp(t, 5)
		o.prOut(prPreempt, 3, 2, 1).good()
		h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCRegistrationsPreempted)
		p.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCReservationsReleased)
		o.do("00 00 00 00 00 00", nil, 0).good()
		o.wantReservation(2, 3)
		h.run(transfer(0x28, 0, 1, 0), nil, 512).conflict()
		p.run(transfer(0x28, 0, 1, 0), nil, 512).conflict()
		o.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	})
	t.Run("same type tells nobody", func(t *testing.T) {
		_, o, p := setUp(t, 5)
		o.prOut(prPreempt, 5, 2, 1).good()
		p.do("00 00 00 00 00 00", nil, 0).good()
	})
	for _, kind := range []byte{1, 3, 5, 6} {
		t.Run(fmt.Sprintf("another type than %d", kind), func(t *testing.T) {
			h, o, p := setUp(t, kind)
			o.prOut(prPreempt, kind%3+5, 2, 1).good()
			h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCRegistrationsPreempted)
			p.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCReservationsReleased)
			o.do("00 00 00 00 00 00", nil, 0).good()
		})
	}
	t.Run("own registration only", func(t *testing.T) {
		h, o, _ := setUp(t, 3)
		o.prOut(prPreempt, 0, 2, 2).good() // TYPE counts where a reservation is made
		o.do("00 00 00 00 00 00", nil, 0).good()
		h.wantReservation(1, 3)
		if keys := h.keys(); !slices.Equal(keys, []uint64{1, 3}) {
			t.Errorf("keys %#x", keys)
		}
	})
	t.Run("own key", func(t *testing.T) {
		h, _, _ := setUp(t, 1)
		h.prOut(prPreempt, 3, 1, 1).good()
		h.wantReservation(1, 3)
		if keys := h.keys(); len(keys) != 3 {
			t.Errorf("keys %#x", keys)
		}
	})
	t.Run("all registrants", func(t *testing.T) {
		h, o, p := setUp(t, 8)
		o.prOut(prPreempt, 1, 2, 3).good() // one registration
		h.wantReservation(0, 8)
		p.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCRegistrationsPreempted)
		o.prOut(prPreempt, 1, 2, 0).good() // all others, and the reservation
		h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCRegistrationsPreempted)
		o.wantReservation(2, 1)
		if keys := h.keys(); !slices.Equal(keys, []uint64{2}) {
			t.Errorf("keys %#x", keys)
		}
	})
	t.Run("no reservation", func(t *testing.T) {
		h, o, _ := setUp(t, 0)
		o.prOut(prPreempt, 1, 2, 1).good()
		h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCRegistrationsPreempted)
		o.wantReservation(0, 0)
	})
}

func TestPreemptAndAbort(t *testing.T) {
	var aborted []*lun.Nexus
	h := newHost(t, 1<<20, lun.DiskOptions{AbortTasks: func(n *lun.Nexus) { aborted = append(aborted, n) }})
	o := h.other("b")
	h.prOut(prRegister, 0, 0, 1).good()
	o.prOut(prRegister, 0, 0, 2).good()
	h.prOut(prReserve, 1, 1, 0).good()
	o.prOut(prPreemptAbort, 3, 2, 1).good()
	if !slices.Equal(aborted, []*lun.Nexus{h.n}) {
		t.Errorf("aborted the tasks of %v", aborted)
	}
	o.wantReservation(2, 3)
}

// A registration is by name, so it outlives the nexus.
func TestReservationSurvivesNexusLoss(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	h.prOut(prRegister, 0, 0, 1).good()
	h.prOut(prReserve, 3, 1, 0).good()
	h.disk.Notify(h.n, lun.NexusLoss)
	o.run(transfer(0x28, 0, 1, 0), nil, 512).conflict()
	again := h.other("iqn.2026-01.test:a")
	again.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	h.disk.Notify(nil, lun.LogicalUnitReset)
	o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	o.run(transfer(0x28, 0, 1, 0), nil, 512).conflict()
}

func TestPRCapabilities(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("5e 02 0000000000 00ff 00", nil, 255).is("0008 0c 80 ea01 0000")
	h.do("5e 04 0000000000 00ff 00", nil, 255).field(1, 4)
	list := make([]byte, 24)
	list[15], list[20] = 1, 1 // APTPL
	h.do("5f 00 00 0000 00000018 00", list, 0).parameter(20, 0)
}

func TestSpecifyInitiatorPorts(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	id := iscsiID("b")
	list := cat(be(8, 0), be(8, 7), []byte{0, 0, 0, 0, 8, 0, 0, 0}, be(4, uint64(len(id))), id)
	cdb := []byte{0x5f, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0}
	bad := bytes.Clone(list)
	bad[27]--
	h.run(cdb, bad, 0).parameter(24, 7)
	bad[27]++
	bad[31] += 9
	h.run(cdb, bad, 0).parameter(28, 7)
	h.run(append([]byte{0x5f, 6}, cdb[2:]...), list, 0).parameter(20, 3)
	h.run(append([]byte{0x5f, 1, 1}, cdb[3:]...), list, 0).parameter(20, 3)
	h.run(cdb, list, 0).good()
	if keys := h.keys(); !slices.Equal(keys, []uint64{7, 7}) {
		t.Errorf("keys %#x", keys)
	}
	h.prOut(prReserve, 6, 7, 0).good()
	o.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	h.run(cdb, list, 0).conflict()
	// READ FULL STATUS names both, and h as the holder.
	b := h.do("5e 03 0000000000 0fff 00", nil, 4095).good().data[8:]
	for i, id := range [][]byte{h.n.Initiator, id} {
		want := cat(be(8, 7), make([]byte, 4), []byte{byte(1 - i), byte(6 * (1 - i)), 0, 0, 0, 0, 0, 1}, be(4, uint64(len(id))), id)
		if len(b) < len(want) || !bytes.Equal(b[:len(want)], want) {
			t.Fatalf("descriptor %d is\n%x, want\n%x", i, b, want)
		}
		b = b[len(want):]
	}
}

func TestAllTargetPorts(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	second := &host{t, h.disk, &lun.Nexus{Name: "second path", Initiator: h.n.Initiator, TargetPort: 2}}
	second.run(make([]byte, 6), nil, 0)
	list := make([]byte, 24)
	list[15], list[20] = 5, 4
	h.do("5f 00 00 0000 00000018 00", list, 0).good()
	h.prOut(prReserve, 3, 5, 0).good()
	second.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
	if got := h.do("5e 03 0000000000 0fff 00", nil, 4095).good().data[8+12]; got != 3 {
		t.Errorf("ALL_TG_PT and R_HOLDER byte %#x, want 3", got)
	}
	// Beside a registration by one port there is no room for one by all.
	h.prOut(prRegister, 0, 5, 0).good()
	second.prOut(prRegister, 0, 0, 6).good()
	second.prOut(prReserve, 3, 6, 0).good()
	h.do("5f 00 00 0000 00000018 00", list, 0).conflict()
	h.do("5f 06 00 0000 00000018 00", list, 0).good()
	if keys := h.keys(); !slices.Equal(keys, []uint64{5}) {
		t.Errorf("keys %#x", keys)
	}
	h.wantReservation(5, 3)
}

func TestRegisterAndMove(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	id := iscsiID("b")
	move := func(key, actionKey uint64, flags byte) answer {
		list := cat(be(8, key), be(8, actionKey), []byte{0, flags, 0, 1}, be(4, uint64(len(id))), id)
		return h.run([]byte{0x5f, 7, 0, 0, 0, 0, 0, 0, byte(len(list)), 0}, list, 0)
	}
	move(1, 2, 0).conflict()
	h.prOut(prRegister, 0, 0, 1).good()
	move(1, 2, 0).field(1, 4)
	h.prOut(prReserve, 3, 1, 0).good()
	short := make([]byte, 24)
	short[7], short[15] = 1, 2
	h.do("5f 07 00 0000 00000018 00", short, 0).parameter(24, 7)
	short[23] = 24
	h.do("5f 07 00 0000 00000018 00", short, 0).parameter(20, 7)
	move(1, 0, 0).parameter(8, 7)
	move(1, 2, 1).parameter(17, 0)
	move(9, 2, 0).conflict()
	move(1, 2, 0).good()
	o.wantReservation(2, 3)
	o.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	h.run(transfer(0x28, 0, 1, 0), nil, 512).conflict()
	move(1, 2, 2).conflict() // no longer the holder
	if keys := h.keys(); !slices.Equal(keys, []uint64{1, 2}) {
		t.Errorf("keys %#x", keys)
	}
}

// A reservation goes to one initiator port by a target port that there is, or stays.
func TestMoveDestination(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Ports: []uint16{2}, PortGroups: []lun.PortGroup{{ID: 1, Ports: []uint16{3}}}})
	h.other("b")
	h.prOut(prRegister, 0, 0, 1).good()
	h.prOut(prReserve, 3, 1, 0).good()
	move := func(port byte, id []byte) answer {
		list := cat(be(8, 1), be(8, 2), []byte{0, 2, 0, port}, be(4, uint64(len(id))), id) // UNREG
		return h.run([]byte{0x5f, 7, 0x21, 0, 0, 0, 0, 0, byte(len(list)), 0}, list, 0)
	}
	for _, port := range []byte{0, 4, 99} {
		move(port, iscsiID("b")).parameter(18, 7)
	}
	move(1, iscsiText(0x05, "b")).parameter(24, 7)
	move(1, make([]byte, 24)).parameter(24, 7)
	move(1, cat(iscsiID("b"), iscsiID("c"))).parameter(24, 7)
	h.wantReservation(1, 3)
	move(2, iscsiText(0x45, "B,i,0x00023D000001")).good()
	second := &host{t, h.disk, &lun.Nexus{Name: "b", Initiator: iscsiID("b"), TargetPort: 2}}
	second.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	second.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	h.run(transfer(0x28, 0, 1, 0), nil, 512).conflict()
	second.prOut(prRegister, 0, 2, 3).good()
	second.wantReservation(3, 3)
}

// The TransportIDs of SPEC_I_PT are refused as a whole if one of them is bad, names an
// initiator of another transport, or one that is registered.
func TestTransportIDs(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	o := h.other("b")
	o.prOut(prRegister, 0, 0, 9).good()
	register := func(ids ...[]byte) answer {
		id := cat(ids...)
		list := cat(be(8, 0), be(8, 7), []byte{0, 0, 0, 0, 8, 0, 0, 0}, be(4, uint64(len(id))), id)
		return h.run(cat([]byte{0x5f, 0, 0, 0, 0}, be(4, uint64(len(list))), []byte{0}), list, 0)
	}
	text := func(first, n byte, s string) []byte { return append([]byte{first, 0, 0, n}, s...) }
	long := strings.Repeat("A", 24)
	good := iscsiID("c")
	for name, id := range map[string][]byte{
		"Fibre Channel":            make([]byte, 24),
		"SAS":                      append([]byte{6}, make([]byte, 23)...),
		"reserved format 10b":      append([]byte{0x85}, iscsiID("d")[1:]...),
		"reserved format 11b":      append([]byte{0xc5}, iscsiID("d")[1:]...),
		"reserved byte":            append([]byte{0x45, 1}, iscsiID("d")[2:]...),
		"no termination":           text(5, 24, long),
		"length 21":                text(5, 21, long[:20]+"\x00"),
		"length 16":                text(5, 16, long[:15]+"\x00"),
		"cut off":                  text(5, 28, long[:23]+"\x00"),
		"port without ISID":        iscsiText(0x45, "c"),
		"ISID that isn't a number": iscsiText(0x45, "c,i,0x00023d00000g"),
		"ISID too long":            iscsiText(0x45, "c,i,0x00023d0000011"),
		"node with ISID":           iscsiText(0x05, "c,i,0x00023d000001"),
		"no name":                  iscsiText(0x05, ""),
		"unknown node":             iscsiText(0x05, "z"),
		"registered":               iscsiID("b"),
		"node that is registered":  iscsiText(0x05, "b"),
	} {
		t.Run(name, func(t *testing.T) {
			a := register(good, id)
			a.t = t
			a.parameter(28+len(good), 7)
		})
	}
	if keys := o.keys(); !slices.Equal(keys, []uint64{9}) {
		t.Fatalf("keys %#x after what was refused", keys)
	}
	// A node is all its ports that are known, at this target port.
	for i, port := range []uint16{1, 1, 2} {
		p := &host{t, h.disk, &lun.Nexus{Initiator: iscsiText(0x45, fmt.Sprintf("e,i,0x00023d00000%d", i)), TargetPort: port}}
		p.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
		defer func() {
			want := map[uint16]lun.Status{1: lun.Good, 2: lun.ReservationConflict}[port]
			if a := p.run(transfer(0x28, 0, 1, 0), nil, 512); a.status != want {
				t.Errorf("port %d: status %#x, want %#x", i, a.status, want)
			}
		}()
	}
	register(iscsiText(0x05, "e"), iscsiText(0x05, "e")).good()
	h.prOut(prReserve, 6, 7, 0).good()
	if keys := o.keys(); !slices.Equal(keys, []uint64{9, 7, 7, 7}) {
		t.Errorf("keys %#x", keys)
	}
}

// FuzzTransportID has no list of TransportIDs leave more registrations than it has room
// for, or one that can't be named again.
func FuzzTransportID(f *testing.F) {
	f.Add(iscsiID("c"))
	f.Add(cat(iscsiText(0x05, "b"), iscsiID("c")))
	f.Add(append([]byte{6}, make([]byte, 23)...))
	f.Fuzz(func(t *testing.T, ids []byte) {
		h := newHost(t, 1<<20, lun.DiskOptions{})
		h.other("b")
		list := cat(be(8, 0), be(8, 7), []byte{0, 0, 0, 0, 8, 0, 0, 0}, be(4, uint64(len(ids))), ids)
		cdb := cat([]byte{0x5f, 0, 0, 0, 0}, be(4, uint64(len(list))), []byte{0})
		if h.run(cdb, list, 0).status != lun.Good {
			return
		}
		b := h.do("5e 03 0000000000 ffff 00", nil, 65535).good().data[8:]
		for len(b) > 0 {
			n := 24 + int(binary.BigEndian.Uint32(b[20:]))
			if id := b[24:n]; id[0] != 0x45 || len(id) < 24 || len(id)%4 != 0 || id[len(id)-1] != 0 {
				t.Fatalf("registered as %x", id)
			}
			b = b[n:]
		}
	})
}

// A registration for all ports is the same one by each of them: it can't hand
// the reservation to itself, and go with it.
func TestMoveToOneself(t *testing.T) {
	o := lun.DiskOptions{Memory: lun.StateFile(filepath.Join(t.TempDir(), "state"))}
	h := newHost(t, 1<<20, o)
	register := make([]byte, 24)
	register[15], register[20] = 1, 5 // ALL_TG_PT, APTPL
	h.do("5f 00 00 0000 00000018 00", register, 0).good()
	h.prOut(prReserve, 3, 1, 0).good()
	move := func(port byte) answer {
		id := h.n.Initiator
		list := cat(be(8, 1), be(8, 2), []byte{0, 3, 0, port}, be(4, uint64(len(id))), id) // UNREG, APTPL
		return h.run([]byte{0x5f, 7, 0, 0, 0, 0, 0, 0, byte(len(list)), 0}, list, 0)
	}
	move(1).parameter(24, 7)
	move(2).parameter(24, 7)
	h.wantReservation(1, 3)
	newHost(t, 1<<20, o).wantReservation(1, 3)
}
