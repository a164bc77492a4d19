package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
)

// scatterRange is an LBA range descriptor, with the tags that WRITE SCATTERED(32)
// looks at.
func scatterRange(lba, n uint64, ref uint32, app, mask uint16) []byte {
	return cat(be(8, lba), be(4, n), be(4, uint64(ref)), be(2, uint64(app)), be(2, uint64(mask)), make([]byte, 12))
}

// scatter is WRITE SCATTERED(16), or (32) if long, of blocks of size bytes with a
// data offset in blocks.
func (h *host) scatter(long bool, flags byte, size, offset int, ranges [][]byte, data []byte) answer {
	h.t.Helper()
	list := cat(make([]byte, 32), cat(ranges...))
	list = cat(list, make([]byte, max(offset*size-len(list), 0)), data)
	at, count, blocks := be(2, uint64(offset)), be(2, uint64(len(ranges))), be(4, uint64(len(list)/size))
	cdb := cat([]byte{0x9f, 0x12, flags, 0}, at, []byte{0, 0}, count, blocks, []byte{0, 0})
	if long {
		cdb = cat([]byte{0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x11, flags, 0}, at, []byte{0, 0}, count, make([]byte, 10), blocks)
	}
	if out, _ := h.disk.DataLength(cdb); out != 0 && out < uint64(len(list)/size*size) {
		h.t.Errorf("%x: DataLength %d, want %d", cdb, out, len(list))
	}
	return h.run(cdb, list, 0)
}

func TestWriteScattered(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	data := pattern(6*512, 3)
	h.scatter(false, 0x08, 512, 1, [][]byte{scatterRange(100, 1, 0, 0, 0), scatterRange(7, 0, 0, 0, 0), scatterRange(3, 5, 0, 0, 0)}, data).good()
	if a := h.run(transfer(0x28, 100, 1, 0), nil, 512).good(); !bytes.Equal(a.data, data[:512]) {
		t.Error("the first range isn't there")
	}
	if a := h.run(transfer(0x28, 3, 5, 0), nil, 5*512).good(); !bytes.Equal(a.data, data[512:]) {
		t.Error("the last range isn't there")
	}
	one := [][]byte{scatterRange(100, 1, 0, 0, 0)}
	h.scatter(false, 0, 512, 1, nil, data).good()
	h.scatter(false, 0, 512, 0, one, data[:512]).field(4, 7)
	h.scatter(false, 0, 512, 1, [][]byte{scatterRange(2048, 1, 0, 0, 0)}, data[:512]).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	// Nothing is written if any range is wrong.
	h.scatter(false, 0, 512, 1, [][]byte{scatterRange(200, 1, 0, 0, 0), scatterRange(2047, 2, 0, 0, 0)}, data[:3*512]).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	if a := h.run(transfer(0x28, 200, 1, 0), nil, 512).good(); !bytes.Equal(a.data, make([]byte, 512)) {
		t.Error("a range was written before another was refused")
	}
	// A block too many, and one too few.
	for _, n := range []int{512, 1024} {
		a := h.scatter(false, 0, 512, 1, [][]byte{scatterRange(100, 3, 0, 0, 0)}, data[:n]).fails(lun.AbortedCommand, lun.ASCParameterListLengthError)
		if !bytes.Equal(a.sense[15:18], make([]byte, 3)) {
			t.Errorf("field pointer %x, for what is no ILLEGAL REQUEST", a.sense[15:18])
		}
	}
	h.scatter(false, 0, 512, 1, one, data).fails(lun.AbortedCommand, lun.ASCParameterListLengthError)
	h.scatter(false, 0, 512, 17, make([][]byte, 257), data).field(8, 7)
	h.scatter(false, 0x04, 512, 1, one, data).field(2, 2)
	h.run(unhex(t, "9f120000000100000001000000020000"), data[:512], 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.run(unhex(t, "9f120000000100000001000100000000"), data[:512], 0).field(10, 7)
	// The limits are those of the block limits extension page.
	if b := h.do("12 01 b7 0040 00", nil, 64).good().data; !bytes.Equal(b[16:28], cat(be(4, 16384), be(4, 256), be(4, 16384))) {
		t.Errorf("block limits extension %x", b)
	}
	ro := newHost(t, 1<<20, lun.DiskOptions{ReadOnly: true})
	ro.scatter(false, 0, 512, 1, one, data[:512]).fails(lun.DataProtect, lun.ASCWriteProtected)
}

func TestWriteScatteredProtected(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Protection: 1})
	data := pattern(3*512, 3)
	first, second := sealed(data[:512], 512, 1, 100, 1), sealed(data[512:], 512, 2, 3, 1)
	ranges := [][]byte{scatterRange(100, 1, 0, 0, 0), scatterRange(3, 2, 0, 0, 0)}
	h.scatter(false, 0x20, 520, 1, ranges, cat(first, second)).good()
	if a := h.run(transfer(0x28, 3, 2, 0x20), nil, 1040).good(); !bytes.Equal(a.data, second) {
		t.Error("data and protection information aren't those that were sent")
	}
	h.scatter(false, 0x20, 520, 1, ranges, cat(second, first)).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	h.scatter(true, 0x20, 520, 1, ranges, cat(first, second)).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)

	// Of type 2, each range has the tags that it is checked for.
	h = newHost(t, 1<<20, lun.DiskOptions{Protection: 2})
	ranges = [][]byte{scatterRange(100, 1, 77, 5, 0xffff), scatterRange(3, 2, 1000, 6, 0xffff)}
	first, second = sealed(data[:512], 512, 5, 77, 1), sealed(data[512:], 512, 6, 1000, 1)
	h.scatter(true, 0x20, 520, 1, ranges, cat(first, second)).good()
	h.scatter(true, 0x20, 520, 1, ranges, cat(first, sealed(data[512:], 512, 7, 1000, 1))).fails(lun.AbortedCommand, lun.ASCApplicationTagCheckFailed)
	h.scatter(true, 0x20, 520, 1, ranges, cat(first, sealed(data[512:], 512, 6, 3, 1))).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	h.scatter(false, 0x20, 520, 1, ranges, cat(first, second)).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	h.scatter(false, 0, 512, 1, ranges, data).good()
}
