package lun_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
)

func TestInquiry(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Vendor: "ACME", Product: "Roadrunner", Revision: "7", Serial: "S1"})
	a := h.do("12 00 00 00ff 00", nil, 255).good()
	if got, want := string(a.data[8:36]), "ACME    Roadrunner      7   "; got != want {
		t.Errorf("identification %q, want %q", got, want)
	}
	if a.data[0] != 0 || a.data[1] != 0 || a.data[3]&0xf != 2 || int(a.data[4])+5 != len(a.data) || a.data[7] != 2 {
		t.Errorf("standard data %x", a.data)
	}
	if got := h.do("12 00 00 0005 00", nil, 255).good(); got.in != 5 || got.data[4] != a.data[4] {
		t.Errorf("with an allocation length of 5: %d bytes, %x", got.in, got.data)
	}
	if got := h.do("12 00 00 0000 00", nil, 0).good(); got.in != 0 {
		t.Errorf("with an allocation length of 0: %d bytes", got.in)
	}
	h.do("12 00 80 00ff 00", nil, 255).field(2, 7)
	h.do("12 02 00 00ff 00", nil, 255).field(1, 1)
	h.do("12 01 cc 00ff 00", nil, 255).field(2, 7)
	r := newHost(t, 1<<20, lun.DiskOptions{Removable: true})
	if a := r.do("12 00 00 00ff 00", nil, 255).good(); a.data[1] != 0x80 {
		t.Errorf("RMB byte %#x of a removable disk", a.data[1])
	}
}

func TestVPD(t *testing.T) {
	naa := []byte{0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	h := newHost(t, 1<<20, lun.DiskOptions{Serial: "SN-1", NAA: naa, Thin: true, PhysicalExponent: 3, RotationRate: 7200})
	list := h.do("12 01 00 00ff 00", nil, 255).good().data
	for _, page := range list[4:] {
		a := h.run([]byte{0x12, 1, page, 0x10, 0, 0}, nil, 4096).good()
		if a.data[0] != 0 || a.data[1] != page || int(a.data[2])<<8+int(a.data[3])+4 != len(a.data) {
			t.Errorf("page %02x: %x", page, a.data)
		}
	}
	if !slices.IsSorted(list[4:]) {
		t.Errorf("supported pages %x aren't in order", list[4:])
	}
	h.do("12 01 80 00ff 00", nil, 255).is("0080 0004 534e2d31")
	ids := h.do("12 01 83 00ff 00", nil, 255).good().data[4:]
	if !bytes.Equal(ids[:20], cat([]byte{1, 3, 0, 16}, naa)) {
		t.Errorf("first designator %x, want the NAA one", ids[:20])
	}
	limits := h.do("12 01 b0 00ff 00", nil, 255).good().data
	for _, c := range []struct {
		name string
		got  []byte
		want []byte
	}{
		{"WSNZ", limits[4:5], []byte{0}},
		{"maximum compare and write length", limits[5:6], []byte{255}},
		{"optimal transfer granularity", limits[6:8], be(2, 8)},
		{"maximum transfer length", limits[8:12], be(4, 16384)},
		{"maximum unmap LBA count", limits[20:24], be(4, 1<<20)},
		{"maximum unmap descriptors", limits[24:28], be(4, 256)},
		{"maximum write same length", limits[36:44], be(8, 65535)},
	} {
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s %x, want %x", c.name, c.got, c.want)
		}
	}
	h.do("12 01 b2 00ff 00", nil, 255).is("00b2 0004 00e60200")
	if a := h.do("12 01 b1 0008 00", nil, 255).good(); !bytes.Equal(a.data[4:6], be(2, 7200)) {
		t.Errorf("rotation rate %x", a.data[4:6])
	}
}

func TestIdentityOptions(t *testing.T) {
	eui := []byte{0, 0x10, 0x20, 1, 2, 3, 4, 5}
	h := newHost(t, 1<<20, lun.DiskOptions{EUI: eui, FormFactor: 3, Thin: true, Unzeroed: true})
	if a := h.do("12 01 83 00ff 00", nil, 255).good(); !bytes.Contains(a.data, cat([]byte{1, 2, 0, 8}, eui)) {
		t.Errorf("no EUI-64 in % x", a.data)
	}
	if a := h.do("12 01 b1 0008 00", nil, 255).good(); a.data[7]&0x0f != 3 {
		t.Errorf("form factor %#x", a.data[7])
	}
	if a := h.do("12 01 b2 00ff 00", nil, 255).good(); a.data[5]&0x1c != 0 {
		t.Errorf("LBPRZ in %#x of the provisioning page", a.data[5])
	}
	if a := h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).good(); a.data[14]&0xc0 != 0x80 {
		t.Errorf("LBPME and LBPRZ %#x of READ CAPACITY(16)", a.data[14])
	}
}

func TestDesignatorsDiffer(t *testing.T) {
	a, b := newHost(t, 1<<20, lun.DiskOptions{}), newHost(t, 1<<20, lun.DiskOptions{})
	if bytes.Equal(a.do("12 01 83 00ff 00", nil, 255).good().data, b.do("12 01 83 00ff 00", nil, 255).good().data) {
		t.Error("two disks with default options are the same to an initiator")
	}
}

func TestNewDiskErrors(t *testing.T) {
	for _, c := range []struct {
		size int64
		o    lun.DiskOptions
		want string
	}{
		{1 << 20, lun.DiskOptions{BlockSize: 520}, "neither 512 nor 4096"},
		{4095, lun.DiskOptions{BlockSize: 4096}, "no room"},
		{1 << 20, lun.DiskOptions{Vendor: "123456789"}, "longer than 8"},
		{1 << 20, lun.DiskOptions{Product: "ä"}, "printable ASCII"},
		{1 << 20, lun.DiskOptions{NAA: []byte{0x30}}, "NAA designator"},
		{1 << 20, lun.DiskOptions{PhysicalExponent: 16}, "above 15"},
		{1 << 20, lun.DiskOptions{EUI: make([]byte, 9)}, "not 8, 12 or 16"},
		{1 << 20, lun.DiskOptions{FormFactor: 6}, "above 5"},
		{1 << 20, lun.DiskOptions{LowestAligned: 1 << 14}, "above 16383"},
		{1 << 20, lun.DiskOptions{MaxTransfer: 1 << 31}, "too much"},
	} {
		_, err := lun.NewDisk(guard{mustMem(t, c.size), t}, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("NewDisk(%d bytes, %+v) = %v; want an error with %q", c.size, c.o, err, c.want)
		}
	}
	if _, err := lun.NewDisk(thickOnly{mustMem(t, 1<<20)}, lun.DiskOptions{Thin: true}); err == nil {
		t.Error("a thin disk over a store that can't unmap gave no error")
	}
}

func TestReportLUNs(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("a0 00 00 000000 00000100 00 00", nil, 256).is("00000008 00000000 0000000000000000")
	h.do("a0 00 01 000000 00000100 00 00", nil, 256).is("00000000 00000000")
	h.do("a0 00 33 000000 00000100 00 00", nil, 256).field(2, 7)
	h.do("a0 00 00 000000 0000000f 00 00", nil, 256).field(6, 7)
}

func TestVersionDescriptors(t *testing.T) {
	for _, c := range []struct {
		o    lun.DiskOptions
		want string
	}{
		{lun.DiskOptions{}, "00a0 0460 05c0 04c0 0600 0960 0000 0000"},
		{lun.DiskOptions{Zones: &lun.ZoneOptions{Size: 64}}, "00a0 0460 05c0 04c0 0600 0960 0660 0000"},
	} {
		if got := newHost(t, 1<<20, c.o).do("12 00 00 0060 00", nil, 96).good().data[58:74]; !bytes.Equal(got, unhex(t, c.want)) {
			t.Errorf("%x, want %s", got, c.want)
		}
	}
}

// TestOpcodes asks for every command that the disk has in each way there is,
// and compares the answers.
func TestOpcodes(t *testing.T) {
	for _, o := range fuzzKinds {
		h := newHost(t, 1<<20, o)
		all := h.do("a3 0c 80 00 0000 0000ffff 00 00", nil, 65535).good().data
		if int(all[0])<<24|int(all[1])<<16|int(all[2])<<8|int(all[3]) != len(all)-4 {
			t.Fatalf("command data length %x of %d bytes", all[:4], len(all))
		}
		last := -1
		for all = all[4:]; len(all) > 0; all = all[20:] {
			code, servactv, size := all[0], all[5]&1, int(all[7])
			if at := int(code)<<16 | int(all[2])<<8 | int(all[3]); at <= last {
				t.Errorf("%02x/%x%02x is listed out of order or twice", code, all[2], all[3])
			} else {
				last = at
			}
			options, wrong := byte(1), byte(2)
			if servactv == 1 {
				options, wrong = 2, 1
			}
			one := []byte{0xa3, 0x0c, 0x80 | options, code, all[2], all[3], 0, 0, 1, 0, 0, 0}
			a := h.run(one, nil, 256).good()
			if a.data[1] != 0x83 || int(a.data[3]) != size || a.data[4] != code || len(a.data) != 4+size+12 {
				t.Errorf("%x: %x; listed as %x", one, a.data, all[:20])
			}
			one[2] = wrong
			h.run(one, nil, 256).field(2, 2)
			one[2] = 3
			if b := h.run(one, nil, 256).good(); !bytes.Equal(b.data[4:], a.data[4:4+size]) {
				t.Errorf("%x: %x with reporting options 3, %x otherwise", one, b.data, a.data)
			}
			reserved(t, h, a.data[4:4+size], servactv == 1)
		}
	}
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("a3 0c 01 ff 0000 000000ff 00 00", nil, 255).is("00010000")
	h.do("a3 0c 02 9e 001f 000000ff 00 00", nil, 255).is("00010000")
	h.do("a3 0c 01 25 0000 000000ff 00 00", nil, 255).is("0003000a 25000000000000000000")
	h.do("a3 0c 04 00 0000 000000ff 00 00", nil, 255).field(2, 2)
}

// The time-outs that a disk recommends are longer for what goes over all of it, and
// for what flushes.
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		size    int64
		o       lun.DiskOptions
		command string
		want    uint64
	}{
		{1 << 20, lun.DiskOptions{}, "28 0000", 30},
		{1 << 20, lun.DiskOptions{}, "35 0000", 300},
		{1 << 20, lun.DiskOptions{}, "83 0001", 600},
		{1 << 20, lun.DiskOptions{}, "04 0000", 3600},
		{1 << 40, lun.DiskOptions{}, "04 0000", 3600 + 1<<15},
		{1 << 40, lun.DiskOptions{EraseTime: 2 * time.Hour, Thin: true}, "48 0003", 3*3600 + 1<<15},
	} {
		h := newHost(t, c.size, c.o)
		data := h.do("a3 0c 83"+c.command+"00000100 00 00", nil, 256).good().data
		if got := number(data[len(data)-4:]); got != c.want {
			t.Errorf("%s of %d bytes: %d seconds, want %d", c.command, c.size, got, c.want)
		}
	}
}

// What a disk says of task management, and whether it takes NACA, is its target's
// to say.
func TestTaskFunctions(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	const tmfs = "a3 0d 00 000000 000000ff 00 00"
	h.do(tmfs, nil, 255).is("00000000")
	h.do("00 00 00 00 00 04", nil, 0).field(5, 2)
	if a := h.do("12 00 00 0024 00", nil, 36).good(); a.data[3]&0x20 != 0 {
		t.Error("NORMACA without a target")
	}
	h.disk.TaskControl().Offer(lun.AbortTaskFunction | lun.ClearACAFunction | lun.QueryTaskFunction | lun.NexusResetFunction)
	h.do(tmfs, nil, 255).is("a4010000")
	h.do("a3 0d 80 000000 000000ff 00 00", nil, 255).is("a401000c 01002400 0000012c 0000000a")
	h.do("00 00 00 00 00 04", nil, 0).good()
	h.do("00 00 00 00 00 08", nil, 0).field(5, 3)
	h.do("a3 0c 01 25 0000 000000ff 00 00", nil, 255).is("0003000a 25000000000000000004")
	if a := h.do("12 00 00 0024 00", nil, 36).good(); a.data[3]&0x20 == 0 {
		t.Error("no NORMACA")
	}
}

// reserved sets each bit that a CDB must not have, alone.
func reserved(t *testing.T, h *host, usage []byte, action bool) {
	t.Helper()
	for i := 1; i < len(usage); i++ {
		for bit := range byte(8) {
			if usage[i]>>bit&1 == 1 || action && i == 1 && bit < 5 || usage[0] == 0x7f && i < 10 {
				continue
			}
			cdb := make([]byte, len(usage))
			cdb[0] = usage[0]
			if action {
				cdb[1] = usage[1] & 0x1f
			}
			if usage[0] == 0x7f {
				copy(cdb[7:10], usage[7:])
			}
			cdb[i] |= 1 << bit
			h.run(cdb, nil, 0).field(i, bit)
		}
	}
}

func TestUnknownCommands(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	for _, cdb := range []string{"ff 00 00 00 00 00", "42 00 00000000 00 0000 00", "1e 00 00 00 00 00"} {
		h.do(cdb, nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	}
	h.do("5e 1f 00 00000000 0000 00", nil, 0).field(1, 4)
	h.do("28 00 00000000 00", nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	h.run(nil, nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	h.run([]byte{0}, nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	getStatus := "7f 00 00000000 00 18 0012 00 00 0000000000000000 00000000 00000000 000000ff"
	h.do(getStatus, nil, 255).good()
	newHost(t, 1<<20, lun.DiskOptions{ShortCommands: true}).do(getStatus, nil, 255).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
}
