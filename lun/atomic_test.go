package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
)

func TestWriteAtomic(t *testing.T) {
	s := mustMem(t, 1<<30)
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	atomic := func(lba uint64, n int, data []byte) answer {
		t.Helper()
		return h.run(cat([]byte{0x9c, 0}, be(8, lba), []byte{0, 0}, be(2, uint64(n)), []byte{0, 0}), data, 0)
	}
	data := pattern(2048*512, 7)
	atomic(100, 2048, data).good()
	if a := h.run(transfer(0x28, 100, 2048, 0), nil, len(data)).good(); !bytes.Equal(a.data, data) {
		t.Error("it wrote something else")
	}
	atomic(100, 2049, data).field(12, 7)
	atomic(100, 2, data[:1023]).field(12, 7)
	atomic(1<<21-1, 2, data).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.run(cat([]byte{0x9c, 0}, be(8, 0), []byte{0, 1, 0, 2, 0, 0}), data, 0).field(11, 0) // a boundary
	if got := h.do("12 01 b0 00ff 00", nil, 255).good().data[44:48]; !bytes.Equal(got, be(4, 2048)) {
		t.Errorf("maximum atomic transfer length %x", got)
	}
	coarse := newHost(t, 1<<20, lun.DiskOptions{PhysicalExponent: 3})
	coarse.run(cat([]byte{0x9c, 0}, be(8, 8), []byte{0, 0, 0, 16, 0, 0}), data[:16*512], 0).good()
	coarse.run(cat([]byte{0x9c, 0}, be(8, 8), []byte{0, 0, 0, 15, 0, 0}), data[:15*512], 0).field(12, 7)
	coarse.run(cat([]byte{0x9c, 0}, be(8, 9), []byte{0, 0, 0, 16, 0, 0}), data[:16*512], 0).field(2, 7)
	file := hostOf(t, thickOnly{mustMem(t, 1<<20)}, lun.DiskOptions{})
	file.run(cat([]byte{0x9c, 0}, make([]byte, 14)), nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
}

// A WRITE ATOMIC that runs out of room in the middle leaves what was there.
func TestWriteAtomicFails(t *testing.T) {
	s, err := mem.NewLimited(1<<20, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	old := pattern(64<<10, 1)
	h.run(transfer(0x2a, 0, 128, 0), old, 0).good()
	h.run(cat([]byte{0x9c, 0}, be(8, 120), []byte{0, 0, 0, 16, 0, 0}), pattern(16*512, 9), 0).fails(lun.DataProtect, lun.ASCSpaceAllocationFailed)
	if a := h.run(transfer(0x28, 0, 128, 0), nil, 64<<10).good(); !bytes.Equal(a.data, old) {
		t.Error("part of it was written")
	}
}

// A WRITE ATOMIC whose protection information is wrong somewhere leaves what was
// there, with its own.
func TestWriteAtomicProtected(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Protection: 1})
	const n = 150 // more than one batch
	old, next := sealed(pattern(n*512, 1), 512, 7, 5, 1), sealed(pattern(n*512, 2), 512, 8, 5, 1)
	cdb := cat([]byte{0x9c, 0x20}, be(8, 5), []byte{0, 0}, be(2, n), []byte{0, 0})
	h.run(cdb, old, 0).good()
	bad := bytes.Clone(next)
	bad[len(bad)-1] ^= 1
	h.run(cdb, bad, 0).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	if a := h.run(transfer(0x28, 5, n, 0x20), nil, n*520).good(); !bytes.Equal(a.data, old) {
		t.Error("part of it was written")
	}
	h.run(cdb, next[:len(next)-1], 0).field(12, 7)
	h.run(cdb, next, 0).good()
	if a := h.run(transfer(0x28, 5, n, 0x20), nil, n*520).good(); !bytes.Equal(a.data, next) {
		t.Error("it wrote something else")
	}
	h = newHost(t, 1<<20, lun.DiskOptions{Protection: 2})
	long := func(ref uint32) []byte {
		return cat([]byte{0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x0f, 0x20, 0}, be(8, 5), be(4, uint64(ref)), []byte{0, 8, 0xff, 0xff}, be(4, n))
	}
	h.run(long(5), next, 0).good()
	h.run(long(6), next, 0).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	h.run(long(5), next[:520], 0).field(28, 7)
	h.run(cdb, next, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
}
