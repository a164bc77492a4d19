package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
)

// target is an identification descriptor for a disk.
func target(d *lun.Disk) []byte {
	naa := d.Options().NAA
	b := make([]byte, 32)
	copy(b, []byte{0xe4, 0, 0, 0, 1, 3, 0, byte(len(naa))})
	copy(b[8:], naa)
	return b
}

func segmentOf(flags byte, from, to, n int, fromLBA, toLBA uint64) []byte {
	return cat([]byte{2, flags, 0, 24}, be(2, uint64(from)), be(2, uint64(to)), []byte{0, 0}, be(2, uint64(n)), be(8, fromLBA), be(8, toLBA))
}

func (h *host) copyBlocks(list, usage byte, targets, segments []byte) answer {
	h.t.Helper()
	b := cat([]byte{list, usage << 3}, be(2, uint64(len(targets))), make([]byte, 4), be(4, uint64(len(segments))), make([]byte, 4), targets, segments)
	return h.run(cat([]byte{0x83, 0}, make([]byte, 8), be(4, uint64(len(b))), []byte{0, 0}), b, 0)
}

func TestExtendedCopy(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	o := newHost(t, 1<<20, lun.DiskOptions{Copies: &set, BlockSize: 4096})
	both := cat(target(h.disk), target(o.disk))
	data := pattern(400*512, 3) // more than one piece
	h.run(transfer(0x2a, 8, 400, 0), data, 0).good()
	h.copyBlocks(1, 0, both, cat(segmentOf(0, 0, 1, 400, 8, 7), segmentOf(2, 1, 1, 50, 7, 100))).good()
	for _, lba := range []uint64{7, 100} {
		if a := o.run(transfer(0x28, lba, 50, 0), nil, len(data)).good(); !bytes.Equal(a.data, data) {
			t.Errorf("the blocks at %d aren't what was copied", lba)
		}
	}
	h.do("84 00 01 00000000000000 000000ff 00 00", nil, 255).is("00000008 01 0002 00 00064000")
	h.do("84 00 02 00000000000000 000000ff 00 00", nil, 255).field(2, 7)
	h.do("84 04 01 00000000000000 000000ff 00 00", nil, 255).field(2, 7)
	h.other("b").do("84 00 01 00000000000000 000000ff 00 00", nil, 255).field(2, 7)
	// A count that makes no whole blocks of the destination.
	h.copyBlocks(2, 0, both, segmentOf(0, 0, 1, 7, 8, 7)).fails(lun.CopyAborted, lun.ASCCopySegmentGranularityViolation)
	h.do("84 00 02 00000000000000 000000ff 00 00", nil, 255).is("00000008 02 0001 00 00000000")
	if b := h.do("84 04 02 00000000000000 000000ff 00 00", nil, 255).good().data; b[56] != 2 || b[62] != 0x0a || len(b) != 78 {
		t.Errorf("failure details %x", b)
	}
	// Nothing is held if that isn't wanted.
	h.copyBlocks(0, 3, both, segmentOf(0, 0, 1, 8, 8, 7)).good()
	h.do("84 00 00 00000000000000 000000ff 00 00", nil, 255).field(2, 7)
}

func TestExtendedCopyErrors(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	o := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	alone := newHost(t, 1<<20, lun.DiskOptions{})
	one, seg := target(h.disk), segmentOf(0, 0, 0, 8, 0, 100)
	null := bytes.Clone(one)
	null[1] |= 0x20
	proxy := bytes.Clone(one)
	proxy[1] |= 0x40
	fc := bytes.Clone(one)
	fc[0] = 0xe0
	stream := bytes.Clone(seg)
	stream[0] = 3
	short := bytes.Clone(seg)
	short[3]--
	h.copyBlocks(1, 0, one, segmentOf(0, 0, 1, 8, 0, 100)).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyBlocks(1, 0, null, seg).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyBlocks(1, 0, target(alone.disk), seg).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyBlocks(1, 0, one, segmentOf(0, 0, 0, 8, 2041, 100)).fails(lun.CopyAborted, lun.ASCNone)
	h.copyBlocks(1, 0, one, segmentOf(0, 0, 0, 8, 0, 2041)).fails(lun.CopyAborted, lun.ASCNone)
	h.copyBlocks(1, 0, proxy, seg).good()
	h.copyBlocks(1, 0, fc, seg).fails(lun.IllegalRequest, lun.ASCUnsupportedTargetDescriptor)
	h.copyBlocks(1, 0, one, stream).fails(lun.IllegalRequest, lun.ASCUnsupportedSegmentDescriptor)
	h.copyBlocks(1, 0, one, short).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.copyBlocks(1, 0, one[:31], seg).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.copyBlocks(1, 0, bytes.Repeat(one, 17), seg).fails(lun.IllegalRequest, lun.ASCTooManyTargetDescriptors)
	h.copyBlocks(1, 0, one, bytes.Repeat(seg, 17)).fails(lun.IllegalRequest, lun.ASCTooManySegmentDescriptors)
	h.copyBlocks(1, 0, bytes.Repeat(one, 17), bytes.Repeat(seg, 17)).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.copyBlocks(1, 3, one, seg).parameter(1, 4)
	h.copyBlocks(1, 8, one, seg).parameter(1, 6)
	h.do("83 00 0000000000000000 00000000 00 00", nil, 0).good()
	h.do("83 00 0000000000000000 00000010 00 00", make([]byte, 15), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("83 00 0000000000000000 00000010 00 00", cat(make([]byte, 15), []byte{1}), 0).fails(lun.IllegalRequest, lun.ASCInlineDataLengthExceeded)
	// Another disk's reservation counts, and what it can't do.
	both := cat(one, target(o.disk))
	across := segmentOf(0, 0, 1, 8, 0, 100)
	h.copyBlocks(1, 0, both, across).good()
	o.prOut(prRegister, 0, 0, 1).good()
	o.prOut(prReserve, 1, 1, 0).good()
	h.n = &lun.Nexus{Name: "z", Initiator: iscsiID("z"), TargetPort: 1}
	h.run(make([]byte, 6), nil, 0)
	h.copyBlocks(1, 0, both, across).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	h.copyBlocks(1, 0, both, segmentOf(0, 1, 0, 8, 0, 100)).good() // may read
	o.do("1b 00 00 00 00 00", nil, 0).good()
	h.copyBlocks(1, 0, both, segmentOf(0, 1, 0, 8, 0, 100)).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
	if err := o.disk.Close(); err != nil {
		t.Fatal(err)
	}
	h.copyBlocks(1, 0, both, across).fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
}

// A zoned disk is a source, and no destination: a copy would pass by its write
// pointers.
func TestCopyZoned(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	z := newHost(t, 1<<20, lun.DiskOptions{Copies: &set, Zones: &lun.ZoneOptions{Size: 64, Conventional: 1}})
	both := cat(target(h.disk), target(z.disk))
	z.writeZone(64, 8).good()
	h.run(transfer(0x2a, 0, 8, 0), pattern(4096, 1), 0).good()
	for _, lba := range []uint64{0, 72, 80} {
		h.copyBlocks(1, 0, both, segmentOf(0, 0, 1, 8, 0, lba)).fails(lun.CopyAborted, lun.ASCIncorrectCopyTargetDeviceType)
	}
	if _, pointers := z.zones(64, 0); pointers[0] != 72 {
		t.Errorf("the write pointer is at %d, want 72", pointers[0])
	}
	if a := z.run(transfer(0x28, 80, 8, 0), nil, 4096); a.status == lun.Good && !bytes.Equal(a.data, make([]byte, 4096)) {
		t.Error("the copy was written past the write pointer")
	}
	h.copyBlocks(1, 0, both, segmentOf(0, 1, 0, 8, 64, 100)).good()
	if a := h.run(transfer(0x28, 100, 8, 0), nil, 4096).good(); !bytes.Equal(a.data, pattern(4096, 64)) {
		t.Error("the blocks aren't what was copied from the zone")
	}
}

// A disk that the port has no access to is neither source nor destination.
func TestCopyAccessState(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	o := newHost(t, 1<<20, lun.DiskOptions{Copies: &set, PortGroups: []lun.PortGroup{{ID: 1, Ports: []uint16{1}}}})
	both := cat(target(h.disk), target(o.disk))
	for _, c := range []struct {
		state lun.AccessState
		ok    bool
	}{{lun.Standby, false}, {lun.Unavailable, false}, {lun.Transitioning, false}, {lun.ActiveNonOptimized, true}} {
		if err := o.disk.SetAccess(1, c.state); err != nil {
			t.Fatal(err)
		}
		for _, seg := range [][]byte{segmentOf(0, 0, 1, 8, 0, 100), segmentOf(0, 1, 0, 8, 0, 100)} {
			if a := h.copyBlocks(1, 0, both, seg); c.ok {
				a.good()
			} else {
				a.fails(lun.CopyAborted, lun.ASCUnreachableCopyTarget)
			}
		}
	}
}

// TestCopySense has a copy fail at either end: the sense data says at which, in which
// segment, and why.
func TestCopySense(t *testing.T) {
	var set lun.CopySet
	h := newHost(t, 1<<20, lun.DiskOptions{Copies: &set})
	ro := newHost(t, 1<<20, lun.DiskOptions{Copies: &set, ReadOnly: true})
	both := cat(target(h.disk), target(ro.disk))
	h.do("3f 40 00000064 00 0000 00", nil, 0).good() // block 100 is bad
	well := segmentOf(0, 0, 0, 8, 0, 200)
	const beyond = "02 7000 05 00000000 0a 00000000 2100 00 000000"
	for _, c := range []struct {
		name string
		list []byte
		want string // after the key
	}{
		{"a bad block of the source", cat(well, segmentOf(0, 0, 0, 8, 100, 300)),
			"00000000 1d 1200 0001 0d01 00 000000 02 f000 03 00000064 0a 00000000 1114 00 000000"},
		{"beyond the source", segmentOf(0, 0, 0, 8, 2041, 0), "00000000 1d 1200 0000 0000 00 af000c" + beyond},
		{"beyond the destination", cat(well, well, segmentOf(0, 0, 0, 8, 0, 2041)), "00000000 1d 0012 0002 0000 00 af0014" + beyond},
		{"a protected destination", segmentOf(0, 0, 1, 8, 0, 0), "00000000 1d 0012 0000 0d01 00 000000 02 7000 07 00000000 0a 00000000 2700 00 000000"},
		{"no such source", segmentOf(0, 5, 0, 8, 0, 0), "00000000 0a 0000 0000 0804 00 af0004"},
		{"no such destination", segmentOf(0, 0, 5, 8, 0, 0), "00000000 0a 0000 0000 0804 00 af0006"},
	} {
		a := h.copyBlocks(1, 0, both, c.list)
		if want := unhex(t, "7000 0a"+c.want); !bytes.Equal(a.sense, want) {
			t.Errorf("%s: sense\n%x, want\n%x", c.name, a.sense, want)
		}
	}
	fc := bytes.Clone(both)
	fc[32] = 0xe0
	stream := cat(well, well)
	stream[28] = 3
	for _, c := range []struct {
		targets, segments []byte
		want              string
	}{{fc, well, "2607 00 8f0030"}, {both, stream, "2609 00 8f006c"}} {
		if a := h.copyBlocks(1, 0, c.targets, c.segments); !bytes.Equal(a.sense[12:], unhex(t, c.want)) {
			t.Errorf("sense %x, want %s", a.sense, c.want)
		}
	}
	h.selectPage(0, "0a0a 04100040000000000000").good() // D_SENSE
	a := h.copyBlocks(1, 0, both, cat(well, segmentOf(0, 0, 0, 8, 100, 300)))
	if want := unhex(t, "720a0d01 00000024 010a0000000000000000 0001 0c16 01 02 72031114 0000000c 000a8000 0000000000000064"); !bytes.Equal(a.sense, want) {
		t.Errorf("descriptors\n%x, want\n%x", a.sense, want)
	}
}

func TestCopyParameters(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	b := h.do("84 03 00 00000000000000 000000ff 00 00", nil, 255).good().data
	if len(b) != 46 || !bytes.Equal(b[8:20], cat(be(2, 16), be(2, 16), be(4, 960), be(4, 65535*512))) {
		t.Errorf("operating parameters %x", b)
	}
	// The VPD page is made of descriptors that fill it.
	page := h.do("12 01 8f 0fff 00", nil, 4095).good().data[4:]
	for len(page) > 0 {
		n := 4 + int(page[2])<<8 + int(page[3])
		if n%4 != 0 || n > len(page) {
			t.Fatalf("third-party copy descriptor of %d bytes where %d are left", n, len(page))
		}
		page = page[n:]
	}
}
