package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
)

func TestStreams(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Streams: 3})
	page := h.run([]byte{0x5a, 8, 0x0a, 5, 0, 0, 0, 0xff, 0xff, 0}, nil, 65535).good().data[8:]
	if !bytes.Equal(page[:4], []byte{0xca, 5, 4, 0x0c}) || len(page) != 4+0x40c {
		t.Fatalf("the page begins with %x and has %d bytes", page[:4], len(page))
	}
	for i := range 64 {
		want := byte(0)
		if i < 3 {
			want = 4
		}
		if got := page[16+16*i]; got != want {
			t.Errorf("group %d: %#x, want %#x", i, got, want)
		}
	}
	h.do("9e 16 0000 0001 00000000 00000010 00 00", nil, 16).is("00000010 0000 0003 80000001 00000000")
	h.do("9e 16 0000 0002 00000000 00000010 00 00", nil, 16).is("00000008 0000 0003 80000002 00000000")
	h.do("9e 16 0000 0003 00000000 00000010 00 00", nil, 16).field(4, 7)
	if b := h.do("12 01 b7 00ff 00", nil, 255).good().data; !bytes.Equal(b[4:8], []byte{0, 1, 0, 3}) {
		t.Errorf("block limits extension %x", b[:8])
	}
	// It doesn't fit an answer of 6 bytes' worth of length, and the rest does.
	h.do("1a 08 0a 05 ff 00", nil, 255).field(2, 5)
	if b := h.do("1a 08 3f ff ff 00", nil, 255).good().data; int(b[0])+1 != len(b) {
		t.Errorf("mode data length %d of %d bytes", b[0], len(b))
	}
	none := newHost(t, 1<<20, lun.DiskOptions{})
	none.do("9e 16 0000 0000 00000000 00000010 00 00", nil, 16).field(1, 4)
	none.do("5a 08 0a 05 000000 00ff 00", nil, 255).field(3, 7)
	if b := none.do("12 01 b7 00ff 00", nil, 255).good().data; b[5] != 0 {
		t.Errorf("block limits extension %x", b[:8])
	}
	for _, n := range []uint8{1, 65} {
		if _, err := lun.NewDisk(mustMem(t, 1<<20), lun.DiskOptions{Streams: n}); err == nil {
			t.Errorf("NewDisk took %d streams", n)
		}
	}
}
