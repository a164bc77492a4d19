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
		h.run(transfer(code, 100, 50, 0x06), nil, 0).field(1, 2)
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

func TestPrefetch(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	for _, code := range []byte{0x34, 0x90, 0x35, 0x91} {
		h.run(transfer(code, 0, 0, 0), nil, 0).good()
		h.run(transfer(code, 7, 100, 2), nil, 0).good()
		h.run(transfer(code, 2047, 2, 0), nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
		h.run(transfer(code, 2048, 0, 0), nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	}
}
