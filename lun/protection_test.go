package lun_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"

	"lunlab/lun"
)

// crc is CRC-16/T10-DIF the slow way.
func crc(b []byte) (c uint16) {
	for _, x := range b {
		c ^= uint16(x) << 8
		for range 8 {
			if c&0x8000 != 0 {
				c = c<<1 ^ 0x8bb7
			} else {
				c <<= 1
			}
		}
	}
	return c
}

func dif(block []byte, app uint16, ref uint32) []byte {
	return cat(be(2, uint64(crc(block))), be(2, uint64(app)), be(4, uint64(ref)))
}

// sealed puts each block's protection information behind it.
func sealed(data []byte, bs int, app uint16, ref uint32, step uint32) (out []byte) {
	for ; len(data) > 0; data = data[bs:] {
		out = append(append(out, data[:bs]...), dif(data[:bs], app, ref)...)
		ref += step
	}
	return out
}

func TestCRC(t *testing.T) {
	// The check value of CRC-16/T10-DIF.
	if got := crc([]byte("123456789")); got != 0xd0db {
		t.Errorf("crc %#x", got)
	}
}

func TestProtectionType1(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		h := newHost(t, 8<<20, lun.DiskOptions{BlockSize: bs, Thin: true, Protection: 1})
		if want := uint64(8<<20) / uint64(bs+8); h.disk.Blocks() != want {
			t.Errorf("%d blocks, want %d", h.disk.Blocks(), want)
		}
		if b := h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).good().data; b[12] != 1 {
			t.Errorf("P_TYPE and PROT_EN byte %#x, want 1", b[12])
		}
		const n = 140 // more than one batch of either size
		data := pattern(n*bs, 3)
		wire := sealed(data, bs, 0xabcd, 7, 1)
		h.run(transfer(0x2a, 7, n, 0x20), wire, 0).good()
		if a := h.run(transfer(0x28, 7, n, 0x20), nil, len(wire)).good(); !bytes.Equal(a.data, wire) {
			t.Error("READ with RDPROTECT doesn't give what WRITE with WRPROTECT took")
		}
		if a := h.run(transfer(0x28, 7, n, 0), nil, len(data)).good(); !bytes.Equal(a.data, data) || a.in != uint64(len(data)) {
			t.Error("READ without RDPROTECT")
		}
		if a := h.run(transfer(0x28, 7, 2, 0x20), nil, 700).good(); !bytes.Equal(a.data, wire[:700]) || a.in != uint64(2*(bs+8)) {
			t.Errorf("a short READ: %d of %d bytes", len(a.data), a.in)
		}
		// A WRITE without gets what the standard says.
		h.run(transfer(0x2a, 1000, n, 0), data, 0).good()
		if a := h.run(transfer(0x28, 1000, n, 0x20), nil, len(wire)).good(); !bytes.Equal(a.data, sealed(data, bs, 0, 1000, 1)) {
			t.Error("the protection information made for a plain WRITE is wrong")
		}
		// What was never written, or unmapped, is all ones, and not checked.
		want := cat(make([]byte, bs), bytes.Repeat([]byte{0xff}, 8))
		h.unmap([2]uint64{7, 1}).good()
		for _, lba := range []uint64{0, 7} {
			if a := h.run(transfer(0x28, lba, 1, 0x20), nil, bs+8).good(); !bytes.Equal(a.data, want) {
				t.Errorf("block %d has %x", lba, a.data[bs:])
			}
		}
	}
}

// TestProtectionChecks writes blocks with each part of the protection
// information wrong, under each value of the protection field.
func TestProtectionChecks(t *testing.T) {
	block := pattern(512, 9)
	good := dif(block, 0x1234, 50)
	for _, c := range []struct {
		kind  uint8
		part  string
		at    int
		code  uint16
		fails string // the values of the field that notice
	}{
		{1, "guard", 0, lun.ASCGuardCheckFailed, "145"},
		{1, "app", 2, 0, ""}, // what it is to be isn't known
		{1, "ref", 7, lun.ASCReferenceTagCheckFailed, "125"},
		{3, "guard", 0, lun.ASCGuardCheckFailed, "145"},
		{3, "ref", 7, 0, ""},
	} {
		h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, Protection: c.kind})
		bad := bytes.Clone(good)
		bad[c.at] ^= 1
		for field := byte(1); field <= 5; field++ {
			notices := bytes.IndexByte([]byte(c.fails), '0'+field) >= 0
			h.unmap([2]uint64{49, 2}).good()
			a := h.run(transfer(0x2a, 49, 2, field<<5), cat(block, dif(block, 1, 49), block, bad), 0)
			if !notices {
				a.good()
				continue
			}
			a.fails(lun.AbortedCommand, c.code)
			if !bytes.Equal(a.sense[3:7], be(4, 50)) {
				t.Errorf("%s: sense %x, want LBA 50", c.part, a.sense)
			}
			if a := h.run(transfer(0x28, 50, 1, 0x60), nil, 520).good(); !bytes.Equal(a.data[:512], make([]byte, 512)) {
				t.Errorf("%s: the block that failed was written", c.part)
			}
			if a := h.run(transfer(0x28, 49, 1, 0x60), nil, 520).good(); !bytes.Equal(a.data[:512], block) {
				t.Errorf("%s: the block before wasn't written", c.part)
			}
			// Put it there unchecked, and read.
			h.run(transfer(0x2a, 50, 1, 0x60), cat(block, bad), 0).good()
			h.run(transfer(0x28, 50, 1, field<<5), nil, 520).fails(lun.AbortedCommand, c.code)
			h.run(transfer(0x2f, 50, 1, field<<5), nil, 0).fails(lun.AbortedCommand, c.code)
			h.run(transfer(0x28, 50, 1, 0x60), nil, 520).good()
			h.run(transfer(0x28, 50, 1, 0), nil, 512).fails(lun.AbortedCommand, c.code)
		}
		h.run(transfer(0x28, 0, 1, 0xc0), nil, 520).field(1, 7)
	}
	plain := newHost(t, 1<<20, lun.DiskOptions{Protectable: true})
	plain.run(transfer(0x28, 0, 1, 0x20), nil, 520).field(1, 7)
	none := newHost(t, 1<<20, lun.DiskOptions{})
	none.run(transfer(0x28, 0, 1, 0x20), nil, 520).field(1, 5)
}

func TestProtectionVerify(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, Protection: 1})
	data := pattern(4*512, 3)
	wire := sealed(data, 512, 0x1111, 20, 1)
	h.run(transfer(0x2e, 20, 4, 0x22), wire, 0).good() // WRITE AND VERIFY, WRPROTECT 1, BYTCHK 1
	h.run(transfer(0x2f, 20, 4, 0x22), wire, 0).good()
	h.run(transfer(0x2f, 20, 4, 0x02), data, 0).good()
	h.run(transfer(0x2f, 20, 4, 0), nil, 0).good()
	other := bytes.Clone(wire)
	other[520+514] ^= 1 // the application tag of the second block
	a := h.run(transfer(0x2f, 20, 4, 0x22), other, 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
	if !bytes.Equal(a.sense[3:7], be(4, 520+512)) {
		t.Errorf("sense %x, want offset 1032", a.sense)
	}
	h.run(transfer(0x2f, 20, 4, 0x82), other, 0).good() // only the guard is looked at
	// BYTCHK 11b: one block for all, whose reference tag counts up.
	h.run(transfer(0x2f, 20, 4, 0x26), wire[:520], 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
	h.run(transfer(0x2e, 40, 3, 0x20), sealed(bytes.Repeat(data[:512], 3), 512, 0x1111, 40, 1), 0).good()
	one := sealed(data[:512], 512, 0x1111, 40, 1)
	h.run(transfer(0x2f, 40, 3, 0x26), one, 0).good()
	h.run(transfer(0x2f, 40, 3, 0x26), sealed(data[:512], 512, 0x2222, 40, 1), 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
	h.run(transfer(0x2f, 40, 4, 0x26), one, 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
	h.run(transfer(0x2f, 40, 3, 0x26), sealed(data[:512], 512, 0x1111, 41, 1), 0).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	h.run(transfer(0x2f, 40, 3, 0x26), one[:512], 0).field(1, 2)
	h.run(transfer(0x2f, 40, 3, 0x06), one[:512], 0).good()
}

func TestProtectionOfOtherWrites(t *testing.T) {
	h := newHost(t, 4<<20, lun.DiskOptions{Thin: true, Protection: 1})
	block := pattern(512, 5)
	check := func(what string, lba uint64, n uint32) {
		t.Helper()
		if a := h.run(transfer(0x28, lba, n, 0x20), nil, int(n)*520); a.status != lun.Good {
			t.Errorf("%s left wrong protection information: sense %x", what, a.sense)
		}
	}
	h.run(transfer(0x41, 10, 300, 0), block, 0).good()
	check("WRITE SAME", 10, 300)
	h.run(transfer(0x8b, 10, 300, 0), pattern(300*512, 1), 0).good()
	check("ORWRITE", 10, 300)
	h.run(transfer(0x93, 10, 300, 1), nil, 0).good()
	check("WRITE SAME of zeros", 10, 300)
	h.do("89 00 000000000000000a 000000 01 00 00", cat(make([]byte, 512), block), 0).good()
	check("COMPARE AND WRITE", 10, 1)
	h.run(cat([]byte{0x9c, 0}, be(8, 10), []byte{0, 0, 0, 2, 0, 0}), cat(block, block), 0).good()
	check("WRITE ATOMIC", 10, 2)
	h.copyBlocks(0, 3, target(h.disk), segmentOf(0, 0, 0, 20, 10, 1000)).good()
	check("EXTENDED COPY", 1000, 20)
	// WRITE SAME with protection information: the reference tag counts.
	h.run(transfer(0x41, 40, 1000, 0x20), cat(block, dif(block, 0x77, 40)), 0).good()
	if a := h.run(transfer(0x28, 1039, 1, 0x20), nil, 520).good(); !bytes.Equal(a.data, cat(block, dif(block, 0x77, 1039))) {
		t.Errorf("WRITE SAME left %x at its last block", a.data[512:])
	}
	h.run(transfer(0x41, 40, 10, 0x20), cat(block, dif(block, 0x77, 41)), 0).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	list := overwriteList(1, []byte{1, 2, 3, 4})
	h.run(sanitizeCDB(0x01, len(list)), list, 0).good()
	check("SANITIZE", 40, 10)
}

func TestProtectionType2(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, Protection: 2})
	long := func(action byte, flags byte, lba uint64, n uint32, ref uint32, app, mask uint16) []byte {
		return cat([]byte{0x7f, 0, 0, 0, 0, 0, 0, 24, 0, action, flags, 0}, be(8, lba), be(4, uint64(ref)), be(2, uint64(app)), be(2, uint64(mask)), be(4, uint64(n)))
	}
	const read, verify, write, writeVerify, writeSame = 9, 10, 11, 12, 13
	data := pattern(3*512, 1)
	wire := sealed(data, 512, 0x5005, 9000, 1)
	h.run(long(write, 0x20, 30, 3, 9000, 0x5005, 0xffff), wire, 0).good()
	if a := h.run(long(read, 0x20, 30, 3, 9000, 0x5005, 0xffff), nil, len(wire)).good(); !bytes.Equal(a.data, wire) {
		t.Error("READ(32) doesn't give what WRITE(32) took")
	}
	h.run(long(verify, 0x20, 30, 3, 9000, 0x5005, 0xffff), nil, 0).good()
	h.run(long(read, 0x20, 31, 2, 9000, 0x5005, 0xffff), nil, 1040).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	h.run(long(read, 0x20, 30, 3, 9000, 0x5004, 0xffff), nil, len(wire)).fails(lun.AbortedCommand, lun.ASCApplicationTagCheckFailed)
	h.run(long(read, 0x20, 30, 3, 9000, 0x5004, 0xfffe), nil, len(wire)).good()
	h.run(long(writeVerify, 0x22, 30, 3, 9000, 0x5005, 0xffff), wire, 0).good()
	h.run(long(writeSame, 0x20, 100, 5, 7, 0, 0), cat(data[:512], dif(data[:512], 1, 7)), 0).good()
	h.run(long(read, 0x20, 104, 1, 11, 1, 0xffff), nil, 520).good()
	h.run(transfer(0x28, 30, 1, 0), nil, 512).good()
	h.run(transfer(0x28, 30, 1, 0x20), nil, 520).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	short := long(read, 0, 0, 1, 0, 0, 0)
	short[7] = 20
	h.run(short, nil, 512).field(7, 7)
	h.run(long(0x55, 0, 0, 1, 0, 0, 0), nil, 512).field(8, 7)
	one := newHost(t, 1<<20, lun.DiskOptions{Protection: 1})
	one.run(long(read, 0x20, 0, 1, 0, 0, 0), nil, 520).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
}

func TestFormatWithProtection(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Protectable: true, Thin: true})
	o := h.other("b")
	for _, c := range []struct {
		cdb, list string
		kind      byte
	}{
		{"04 90 00 00 00 00", "00000000", 1},
		{"04 d0 00 00 00 00", "00000000", 3},
		{"04 d0 00 00 00 00", "01000000", 5},
		{"04 00 00 00 00 00", "", 0},
		{"04 80 00 00 00 00", "", 1},
	} {
		h.run(transfer(0x2a, 0, 8, 0), pattern(4096, 1), 0).good()
		list, _ := hex.DecodeString(c.list)
		h.do(c.cdb, list, 0).good()
		want := c.kind
		if c.kind != 0 {
			want = c.kind - 1 | 1
		}
		if b := h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).good().data; b[12] != want {
			t.Errorf("%s: P_TYPE and PROT_EN byte %#x, want %#x", c.cdb, b[12], want)
		}
		o.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCCapacityDataHasChanged)
		if a := h.run(transfer(0x28, 0, 8, 0), nil, 4096).good(); !bytes.Equal(a.data, make([]byte, 4096)) {
			t.Errorf("%s left data", c.cdb)
		}
	}
	h.do("04 50 00 00 00 00", make([]byte, 4), 0).field(1, 7)
	h.do("04 d0 00 00 00 00", []byte{2, 0, 0, 0}, 0).parameter(0, 2)
	h.do("04 10 00 00 00 00", []byte{1, 0, 0, 0}, 0).parameter(0, 2)
	none := newHost(t, 1<<20, lun.DiskOptions{})
	none.do("04 80 00 00 00 00", nil, 0).field(1, 7)
}

func TestProtectionDataLength(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Protection: 1})
	for _, c := range []struct {
		cdb     []byte
		out, in uint64
	}{
		{transfer(0x28, 0, 3, 0), 0, 1536},
		{transfer(0x28, 0, 3, 0x20), 0, 1560},
		{transfer(0x2a, 0, 3, 0x20), 1560, 0},
		{transfer(0x2f, 0, 3, 0x22), 1560, 0},
		{transfer(0x28, 0, 3, 0xc0), 0, 0},
		{transfer(0x41, 0, 3, 0x20), 1032, 0},
	} {
		if out, in := h.disk.DataLength(c.cdb); out != c.out || in != c.in {
			t.Errorf("DataLength(%x) = %d, %d; want %d, %d", c.cdb, out, in, c.out, c.in)
		}
	}
	if got := binary.BigEndian.Uint16(dif(make([]byte, 512), 0, 0)); got != 0 {
		t.Errorf("guard of zeros is %#x", got)
	}
}
