package lun_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
)

// status returns what GET LBA STATUS(32) reports from lba on, as
// "lba+n:status ..." with a ! for each run that may not be readable, and its
// completion condition.
func (h *host) status(kind byte, lba uint64, scan, allocation uint32) (runs string, condition byte) {
	h.t.Helper()
	cdb := cat([]byte{0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x12, kind, 0}, be(8, lba), be(4, uint64(scan)), make([]byte, 4), be(4, uint64(allocation)))
	b := h.run(cdb, nil, int(allocation)).good().data
	if b[7]&1 != 1 {
		h.t.Error("RTP isn't set")
	}
	for d := b[8:]; len(d) >= 16; d = d[16:] {
		runs += fmt.Sprintf(" %d+%d:%d", number(d[:8]), number(d[8:12]), d[12])
		if d[13] == 1 {
			runs += "!"
		}
	}
	if runs != "" {
		runs = runs[1:]
	}
	return runs, b[7] >> 1
}

func number(b []byte) (v uint64) {
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

func TestLBAStatusTypes(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true})
	h.run(transfer(0x2a, 10, 10, 0), pattern(5120, 1), 0).good()
	h.run(transfer(0x93, 15, 10, 0x18), make([]byte, 512), 0).good()
	h.do("3f 40 0000000c 00 0000 00", nil, 0).good() // a bad block
	for _, c := range []struct {
		kind  byte
		lba   uint64
		scan  uint32
		alloc uint32
		want  string
		ends  byte
	}{
		{0, 0, 0, 255, "0+10:1 10+5:0 15+10:2 25+2023:1", 3},
		{1, 0, 0, 255, "0+10:1 10+5:3 15+10:2 25+2023:1", 3},
		{2, 0, 0, 255, "10+5:3", 3},
		{3, 0, 0, 255, "0+10:1 25+2023:1", 3},
		{4, 0, 0, 255, "15+10:2", 3},
		{4, 18, 0, 255, "18+7:2", 3},
		{0x10, 0, 0, 255, "12+1:3!", 3},
		{0, 0, 12, 255, "0+10:1 10+2:0", 2},
		{4, 0, 12, 255, "", 2},
		{0, 0, 0, 40, "0+10:1 10+5:0", 1},
		{0, 2047, 5, 255, "2047+1:1", 3},
	} {
		if got, ends := h.status(c.kind, c.lba, c.scan, c.alloc); got != c.want || ends != c.ends {
			t.Errorf("type %d from %d, %d blocks: %q, ends with %d; want %q, %d", c.kind, c.lba, c.scan, got, ends, c.want, c.ends)
		}
	}
	h.do("9e 12 0000000000000000 000000ff 05 00", nil, 255).field(14, 4)
	h.do("9e 12 0000000000000000 000000ff 20 00", nil, 255).field(14, 5)
	h.do("9e 12 0000000000000000 000000ff 04 00", nil, 255).is("00000014 00000007 000000000000000f 0000000a 02000000")
	h.do("7f 00 00000000 00 18 0012 00 00 0000000000000000 00000000 00000001 000000ff", nil, 255).field(27, 0) // an element
	h.do("7f 00 00000000 00 18 0012 00 00 0000000000000800 00000000 00000000 000000ff", nil, 255).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
}

// TestAnchor anchors blocks: they read as zeros, and have their room.
func TestAnchor(t *testing.T) {
	s, err := mem.NewLimited(1<<20, 256<<10)
	if err != nil {
		t.Fatal(err)
	}
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	h.run(transfer(0x2a, 0, 8, 0), pattern(4096, 1), 0).good()
	h.run([]byte{0x42, 1, 0, 0, 0, 0, 0, 0, 24, 0}, unmapList([2]uint64{0, 256}), 0).good()
	if s.Used() != 128<<10 {
		t.Errorf("256 anchored blocks use %d bytes", s.Used())
	}
	if a := h.run(transfer(0x28, 0, 8, 0), nil, 4096).good(); !bytes.Equal(a.data, make([]byte, 4096)) {
		t.Error("anchored blocks don't read as zeros")
	}
	// Others may take all the rest: what is anchored can still be written.
	h.run(transfer(0x2a, 1024, 256, 0), pattern(128<<10, 1), 0).good()
	h.run(transfer(0x2a, 512, 1, 0), pattern(512, 1), 0).fails(lun.DataProtect, lun.ASCSpaceAllocationFailed)
	h.run([]byte{0x42, 1, 0, 0, 0, 0, 0, 0, 24, 0}, unmapList([2]uint64{512, 1}), 0).fails(lun.DataProtect, lun.ASCSpaceAllocationFailed)
	h.run(transfer(0x2a, 100, 28, 0), pattern(28*512, 1), 0).good()
	if got, _ := h.status(0, 0, 300, 255); got != "0+100:2 100+28:0 128+128:2 256+44:1" {
		t.Errorf("after a write: %s", got)
	}
	h.unmap([2]uint64{0, 256}).good()
	if got, _ := h.status(4, 0, 0, 255); got != "" || s.Used() != 128<<10 {
		t.Errorf("after UNMAP without ANCHOR: %s anchored, %d bytes used", got, s.Used())
	}
	h.run(transfer(0x93, 0, 16, 0x18), make([]byte, 512), 0).good()
	h.run(transfer(0x41, 16, 16, 0x18), make([]byte, 512), 0).good()
	if got, _ := h.status(4, 0, 0, 255); got != "0+32:2" {
		t.Errorf("after WRITE SAME: %s", got)
	}
	h.run(transfer(0x93, 0, 16, 0x10), make([]byte, 512), 0).field(1, 4) // without UNMAP
	h.run(transfer(0x93, 0, 16, 0x18), pattern(512, 1), 0).good()        // data that can't be unmapped
	if got, _ := h.status(4, 0, 0, 255); got != "16+16:2" {
		t.Errorf("after WRITE SAME of data: %s", got)
	}
	h.do("04 00 00 00 00 00", nil, 0).good()
	if got, _ := h.status(4, 0, 0, 255); got != "" {
		t.Errorf("after FORMAT UNIT: %s", got)
	}
	thick := newHost(t, 1<<20, lun.DiskOptions{})
	thick.run(transfer(0x93, 0, 16, 0x10), make([]byte, 512), 0).field(1, 4)
}

// TestBadAndAnchored compares the blocks that a disk knows as bad and anchored
// with a plain model, after commands at random.
func TestBadAndAnchored(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const blocks = 256
	h := newHost(t, blocks*512, lun.DiskOptions{Thin: true, PhysicalExponent: 2})
	var bad, anchored [blocks]bool
	set := func(list *[blocks]bool, lba, n uint64, v bool) {
		for i := lba; i < lba+n; i++ {
			list[i] = v
		}
	}
	for range 3000 {
		lba := r.Uint64N(blocks)
		n := 1 + r.Uint64N(min(20, blocks-lba))
		switch r.IntN(5) {
		case 0:
			h.run(transfer(0x2a, lba, uint32(n), 0), pattern(int(n)*512, 3), 0).good()
			set(&bad, lba, n, false)
			set(&anchored, lba, n, false)
		case 1, 2:
			h.run([]byte{0x42, 1, 0, 0, 0, 0, 0, 0, 24, 0}, unmapList([2]uint64{lba, n}), 0).good()
			set(&bad, lba, n, false)
			set(&anchored, lba, n, true)
		case 3:
			h.run(cat([]byte{0x3f, 0x40}, be(4, lba), make([]byte, 4)), nil, 0).good()
			set(&bad, lba, 1, true)
		case 4:
			h.run(cat([]byte{0x3f, 0x60}, be(4, lba), make([]byte, 4)), nil, 0).good()
			set(&bad, lba&^3, 4, true)
		}
		lba = r.Uint64N(blocks)
		n = 1 + r.Uint64N(min(8, blocks-lba))
		first, want := lba, "good"
		for ; first < lba+n; first++ {
			if bad[first] {
				want = fmt.Sprint("bad at ", first)
				break
			}
		}
		got := "good"
		if a := h.run(transfer(0x28, lba, uint32(n), 0), nil, int(n)*512); a.status != lun.Good {
			got = fmt.Sprint("bad at ", number(a.sense[3:7]))
		}
		if got != want {
			t.Fatalf("READ of %d at %d: %s, want %s", n, lba, got, want)
		}
		if runs, _ := h.status(4, lba, uint32(1), 24); (runs != "") != anchored[lba] {
			t.Fatalf("block %d is anchored: %v, want %v", lba, runs != "", anchored[lba])
		}
	}
}
