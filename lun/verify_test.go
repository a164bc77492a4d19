package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
)

func TestVerify(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	data := pattern(4*512, 3)
	h.run(transfer(0x2a, 8, 4, 0), data, 0).good()
	other := bytes.Clone(data)
	other[1000] ^= 1
	for _, code := range []byte{0x2f, 0xaf, 0x8f} {
		h.run(transfer(code, 8, 4, 0), nil, 0).good()
		h.run(transfer(code, 8, 4, 0x02), data, 0).good()
		a := h.run(transfer(code, 8, 4, 0x02), other, 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
		if a.sense[0] != 0xf0 || !bytes.Equal(a.sense[3:7], be(4, 1000)) {
			t.Errorf("%x: sense %x; want offset 1000", a.cdb, a.sense)
		}
		h.run(transfer(code, 8, 4, 0x04), other, 0).field(1, 2)
		h.run(transfer(code, 8, 4, 0x06), data[:512], 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
		h.run(transfer(code, 8, 1, 0x06), data[:512], 0).good()
		h.run(transfer(code, 100, 50, 0x06), make([]byte, 512), 0).good()
		h.run(transfer(code, 100, 50, 0x06), nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
		h.run(transfer(code, 2047, 2, 0), nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
		h.run(transfer(code, 0, 0, 0x02), nil, 0).good()
	}
}

func TestWriteAndVerify(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	for i, code := range []byte{0x2e, 0xae, 0x8e} {
		data := pattern(200*512, byte(i)) // more than one piece of scratch
		h.run(transfer(code, 8, 200, 0x02), data, 0).good()
		if a := h.run(transfer(0x28, 8, 200, 0), nil, len(data)).good(); !bytes.Equal(a.data, data) {
			t.Errorf("%x wrote something else", code)
		}
		h.run(transfer(code, 8, 2, 0x04), data, 0).field(1, 2)
	}
}

func TestCompareAndWrite(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	old, new1 := pattern(1024, 1), pattern(1024, 2)
	h.run(transfer(0x2a, 5, 2, 0), old, 0).good()
	cdb := "89 00 0000000000000005 000000 02 00 00"
	a := h.do(cdb, cat(new1, new1), 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
	if !bytes.Equal(a.sense[3:7], be(4, 0)) {
		t.Errorf("sense %x; want offset 0", a.sense)
	}
	if a := h.run(transfer(0x28, 5, 2, 0), nil, 1024).good(); !bytes.Equal(a.data, old) {
		t.Error("a miscompare wrote")
	}
	h.do(cdb, cat(old, new1), 0).good()
	if a := h.run(transfer(0x28, 5, 2, 0), nil, 1024).good(); !bytes.Equal(a.data, new1) {
		t.Error("it didn't write")
	}
	h.do(cdb, old, 0).field(13, 7)
	h.do("89 00 0000000000000005 000000 00 00 00", nil, 0).good()
	h.do("89 00 0000000000000005 000000 00 00 00", old, 0).field(13, 7)
	h.do("89 00 00000000000007ff 000000 02 00 00", cat(old, old), 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
}

func TestOrWrite(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	a, b := pattern(200*512, 1), pattern(200*512, 77)
	h.run(transfer(0x2a, 5, 200, 0), a, 0).good()
	h.run(transfer(0x8b, 5, 200, 0), b, 0).good()
	for i := range a {
		a[i] |= b[i]
	}
	if got := h.run(transfer(0x28, 5, 200, 0), nil, len(a)).good(); !bytes.Equal(got.data, a) {
		t.Error("not the OR of what was there and what was sent")
	}
}

func TestPrefetch(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	for _, code := range []byte{0x34, 0x90, 0x35, 0x91} {
		h.run(transfer(code, 0, 0, 0), nil, 0).good()
		h.run(transfer(code, 7, 100, 2), nil, 0).good()
		h.run(transfer(code, 2047, 2, 0), nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
		h.run(transfer(code, 2048, 0, 0), nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	}
}
