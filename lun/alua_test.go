package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
)

func aluaOptions(explicit bool) lun.DiskOptions {
	return lun.DiskOptions{ExplicitAccess: explicit, PortGroups: []lun.PortGroup{
		{ID: 10, Ports: []uint16{1, 3}, Preferred: true},
		{ID: 20, Ports: []uint16{2}, State: lun.Standby},
	}}
}

// at returns a nexus of the same disk at another target port.
func (h *host) at(port uint16) *host {
	o := &host{t: h.t, disk: h.disk, n: &lun.Nexus{Name: "p", Initiator: h.n.Initiator, TargetPort: port}}
	for o.run([]byte{3, 0, 0, 0, 18, 0}, nil, 18).good().data[2] == byte(lun.UnitAttention) {
	}
	return o
}

func TestPortGroups(t *testing.T) {
	h := newHost(t, 1<<20, aluaOptions(true))
	second := h.at(2)
	if b := h.do("12 00 00 00ff 00", nil, 255).good().data; b[5]&0x30 != 0x30 {
		t.Errorf("TPGS in %#x", b[5])
	}
	second.do("a3 0a 00000000 000000ff 00 00", nil, 255).is("0000001c" +
		"80 8f 000a 00 00 00 02 00000001 00000003" +
		"02 8f 0014 00 00 00 01 00000002")
	h.do("a3 2a 00000000 00000008 00 00", nil, 255).is("00000020 10000000")
	h.do("a3 4a 00000000 000000ff 00 00", nil, 255).field(1, 7)
	for _, c := range []struct {
		h    *host
		want []byte
	}{{h, []byte{0x51, 0x95, 0, 4, 0, 0, 0, 10}}, {second, []byte{0x51, 0x95, 0, 4, 0, 0, 0, 20}}} {
		if b := c.h.do("12 01 83 00ff 00", nil, 255).good().data; !bytes.HasSuffix(b, c.want) {
			t.Errorf("designators %x don't end with the port group %x", b, c.want)
		}
	}
}

func TestAccessStates(t *testing.T) {
	h := newHost(t, 1<<20, aluaOptions(true))
	o := h.at(2)
	read := transfer(0x28, 0, 1, 0)
	for _, c := range []struct {
		state   lun.AccessState
		code    uint16 // of a READ, 0 if it runs
		standby bool   // MODE SENSE and the like run
	}{
		{lun.ActiveOptimized, 0, true},
		{lun.ActiveNonOptimized, 0, true},
		{lun.Standby, lun.ASCNotReadyStandby, true},
		{lun.Unavailable, lun.ASCNotReadyUnavailable, false},
		{lun.Transitioning, lun.ASCNotReadyTransition, false},
	} {
		if err := h.disk.SetAccess(20, c.state); err != nil {
			t.Fatal(err)
		}
		for _, x := range []*host{h, o} {
			if a := x.do("03 00 00 00 12 00", nil, 18).good().data; a[2] != 6 || a[12] != 0x2a || a[13] != 6 {
				t.Errorf("state %#x: the nexus isn't told: %x", uint8(c.state), a)
			}
		}
		for _, cdb := range [][]byte{read, {0, 0, 0, 0, 0, 0}, {0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0}} {
			if a := o.run(cdb, nil, 512); c.code == 0 {
				a.good()
			} else {
				a.fails(lun.NotReady, c.code)
			}
		}
		for _, cdb := range []string{"1a 08 08 00 ff 00", "5e 00 0000000000 00ff 00", "4d 00 43 00 00 0000 00ff 00", "a3 0c 00 00 0000 000000ff 00 00"} {
			if a := o.do(cdb, nil, 255); c.standby {
				a.good()
			} else {
				a.fails(lun.NotReady, c.code)
			}
		}
		for _, cdb := range []string{"12 00 00 00ff 00", "a0 00 00 000000 000000ff 00 00", "a3 0a 00000000 000000ff 00 00"} {
			o.do(cdb, nil, 255).good()
		}
		h.run(read, nil, 512).good()
		late := h.at(2)
		if a := late.run(read, nil, 512); (c.code == 0) != (a.status == lun.Good) {
			t.Errorf("state %#x: a nexus that comes later has status %#x", uint8(c.state), a.status)
		}
		h.disk.Notify(late.n, lun.NexusLoss)
	}
	if h.disk.SetAccess(99, lun.Standby) == nil || h.disk.SetAccess(10, 7) == nil {
		t.Error("SetAccess took a group or state that isn't there")
	}
}

func TestSetTargetPortGroups(t *testing.T) {
	h := newHost(t, 1<<20, aluaOptions(true))
	o := h.at(2)
	cdb := "a4 0a 00000000 0000000c 00 00"
	o.do(cdb, []byte{0, 0, 0, 0, 0, 0, 0, 20, 1, 0, 0, 10}, 0).good()
	o.run(transfer(0x28, 0, 1, 0), nil, 512).good()
	h.run(transfer(0x28, 0, 1, 0), nil, 512).attention(lun.ASCAsymmetricAccessChanged)
	o.do("a3 0a 00000000 000000ff 00 00", nil, 255).is("0000001c" +
		"81 8f 000a 00 01 00 02 00000001 00000003" +
		"00 8f 0014 00 01 00 01 00000002")
	o.do(cdb, []byte{0, 0, 0, 0, 2, 0, 0, 20, 0, 0, 0, 11}, 0).parameter(10, 7)
	o.do(cdb, []byte{0, 0, 0, 0, 2, 0, 0, 20, 15, 0, 0, 10}, 0).parameter(8, 3)
	o.run(transfer(0x28, 0, 1, 0), nil, 512).good() // nothing of these was done
	o.do("a4 0a 00000000 00000006 00 00", make([]byte, 6), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	o.do(cdb, make([]byte, 11), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	o.do("a4 0a 00000000 00000000 00 00", nil, 0).good()
	implicit := newHost(t, 1<<20, aluaOptions(false))
	implicit.do(cdb, make([]byte, 12), 0).field(1, 4)
	if b := implicit.do("12 00 00 00ff 00", nil, 255).good().data; b[5]&0x30 != 0x10 {
		t.Errorf("TPGS in %#x", b[5])
	}
	none := newHost(t, 1<<20, lun.DiskOptions{})
	none.do("a3 0a 00000000 000000ff 00 00", nil, 255).field(1, 4)
}

func TestPortGroupErrors(t *testing.T) {
	for _, groups := range [][]lun.PortGroup{
		{{ID: 1, State: 5}},
		{{ID: 1}, {ID: 1}},
		{{ID: 1, Ports: []uint16{0}}},
		{{ID: 1, Ports: []uint16{1}}, {ID: 2, Ports: []uint16{1}}},
		{{ID: 1, Ports: make([]uint16, 256)}},
	} {
		if _, err := lun.NewDisk(mustMem(t, 1<<20), lun.DiskOptions{PortGroups: groups}); err == nil {
			t.Errorf("NewDisk took the port groups %+v", groups)
		}
	}
}
