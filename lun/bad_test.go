package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
)

func TestBadBlocks(t *testing.T) {
	for _, o := range []lun.DiskOptions{{Thin: true, PhysicalExponent: 3}, {Thin: true, PhysicalExponent: 3, Protection: 1}} {
		h := newHost(t, 1<<20, o)
		data := pattern(16*512, 1)
		spoil := func() {
			t.Helper()
			h.run(transfer(0x2a, 0, 16, 0), data, 0).good()
			h.do("3f 40 00000005 00 0000 00", nil, 0).good()
		}
		spoil()
		h.do("9f 51 0000000000000009 0000 0000 00 00", nil, 0).good()
		for _, cdb := range [][]byte{transfer(0x28, 0, 16, 0), transfer(0x2f, 0, 16, 0), transfer(0x8b, 0, 16, 0)} {
			a := h.run(cdb, data, len(data)).fails(lun.MediumError, lun.ASCMarkedBad)
			if !bytes.Equal(a.sense[3:7], be(4, 5)) {
				t.Errorf("%x: sense %x, want LBA 5", cdb, a.sense)
			}
		}
		h.do("89 00 0000000000000005 000000 01 00 00", make([]byte, 1024), 0).fails(lun.MediumError, lun.ASCMarkedBad)
		h.copyBlocks(1, 0, target(h.disk), segmentOf(0, 0, 0, 8, 0, 100)).fails(lun.CopyAborted, lun.ASCThirdPartyDeviceFailure)
		h.run(transfer(0x28, 0, 5, 0), nil, 5*512).good()
		h.run(transfer(0x28, 6, 3, 0), nil, 3*512).good()
		// Every way to write makes it good.
		for _, write := range []func(){
			func() { h.run(transfer(0x2a, 5, 1, 0), data[:512], 0).good() },
			func() { h.run(transfer(0x2e, 5, 1, 0), data[:512], 0).good() },
			func() { h.run(transfer(0x41, 5, 1, 0), data[:512], 0).good() },
			func() { h.unmap([2]uint64{5, 1}).good() },
			func() { h.run(cat([]byte{0x9c, 0}, be(8, 0), []byte{0, 0, 0, 8, 0, 0}), data[:4096], 0).good() },
			func() { h.copyBlocks(1, 0, target(h.disk), segmentOf(0, 0, 0, 1, 100, 5)).good() },
			func() { h.run(sanitizeCDB(2, 0), nil, 0).good() },
			func() { h.do("07 00 00 00 00 00", []byte{0, 0, 0, 4, 0, 0, 0, 5}, 0).good() },
			func() { h.do("07 03 00 00 00 00", cat([]byte{0, 0, 0, 16}, be(8, 5), be(8, 9)), 0).good() },
		} {
			spoil()
			write()
			h.run(transfer(0x28, 5, 1, 0), nil, 512).good()
		}
		// All of a physical block.
		h.do("3f 60 0000000b 00 0000 00", nil, 0).good()
		h.run(transfer(0x28, 7, 1, 0), nil, 512).good()
		h.run(transfer(0x28, 8, 1, 0), nil, 512).fails(lun.MediumError, lun.ASCMarkedBad)
		h.run(transfer(0x28, 15, 1, 0), nil, 512).fails(lun.MediumError, lun.ASCMarkedBad)
		h.run(transfer(0x28, 16, 1, 0), nil, 512).good()
	}
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("3f 00 00000005 00 0000 00", nil, 0).field(1, 6)
	h.do("3f 40 00000005 00 0200 00", make([]byte, 512), 0).field(7, 1)
	h.do("3f 40 00000800 00 0000 00", nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.do("07 00 00 00 00 00", []byte{0, 0, 0}, 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("07 00 00 00 00 00", []byte{0, 0, 0, 8, 0, 0, 0, 1}, 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("07 00 00 00 00 00", []byte{0, 0, 0, 4, 0, 0, 8, 0}, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	ro := newHost(t, 1<<20, lun.DiskOptions{ReadOnly: true})
	ro.do("3f 40 00000005 00 0000 00", nil, 0).fails(lun.DataProtect, lun.ASCWriteProtected)
}

// A store that makes system calls gets the pieces of a scatter list together.
func TestPiecesAreGathered(t *testing.T) {
	s := &calls{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{})
	data := pattern(64<<10, 5)
	c := lun.Command{Nexus: h.n, CDB: transfer(0x2a, 3, 128, 0)}
	for at := 0; at < len(data); at += 4096 {
		c.DataOut = append(c.DataOut, data[at:at+4096])
	}
	h.disk.Execute(&c)
	got := make([]byte, len(data))
	for at := 0; at < len(got); at += 4096 {
		c.DataIn = append(c.DataIn, got[at:at+4096])
	}
	c.CDB = transfer(0x28, 3, 128, 0)
	h.disk.Execute(&c)
	if !bytes.Equal(got, data) {
		t.Error("what was read isn't what was written")
	}
	if s.reads != 1 || s.writes != 1 {
		t.Errorf("%d reads and %d writes of the store, want 1 of each", s.reads, s.writes)
	}
}

// READ LONG is obsolete, and there is nothing that it could read: it is refused as
// a command that isn't there.
func TestReadLong(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	h.do("3e 00 00000000 00 0208 00", nil, 520).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	h.do("9e 11 0000000000000000 0000 0208 00 00", nil, 520).field(1, 4)
	h.do("a3 0c 01 3e 0000 00000100 00 00", nil, 256).is("0001 0000")
	h.do("a3 0c 02 9e 0011 00000100 00 00", nil, 256).is("0001 0000")
}
