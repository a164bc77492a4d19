package lun_test

import (
	"bytes"
	"testing"

	"lunlab/lun"
)

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

// TestCompareAndWriteProtected has protection information in both halves: only
// that of the second counts.
func TestCompareAndWriteProtected(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Protection: 1})
	old, next := pattern(1024, 1), pattern(1024, 2)
	h.run(transfer(0x2a, 5, 2, 0x20), sealed(old, 512, 7, 5, 1), 0).good()
	const cdb = "89 20 0000000000000005 000000 02 00 00"
	junk := sealed(old, 512, 9, 99, 1) // right data with wrong tags
	good := sealed(next, 512, 8, 5, 1)
	if out, _ := h.disk.DataLength(unhex(t, "89200000000000000005000000020000")); out != 5*520 {
		t.Errorf("DataLength is %d", out)
	}
	for at, want := range map[int]uint16{519: lun.ASCReferenceTagCheckFailed, 520: lun.ASCGuardCheckFailed} {
		bad := bytes.Clone(good)
		bad[at] ^= 1
		h.do(cdb, cat(junk, bad), 0).fails(lun.AbortedCommand, want)
		if a := h.run(transfer(0x28, 5, 2, 0x20), nil, 1040).good(); !bytes.Equal(a.data, sealed(old, 512, 7, 5, 1)) {
			t.Error("what failed a check changed something")
		}
	}
	other := bytes.Clone(junk)
	other[523] ^= 1
	a := h.do(cdb, cat(other, good), 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
	if !bytes.Equal(a.sense[3:7], be(4, 523)) {
		t.Errorf("sense %x; want offset 523", a.sense)
	}
	h.do(cdb, cat(junk, good), 0).good()
	if a := h.run(transfer(0x28, 5, 2, 0x20), nil, 1040).good(); !bytes.Equal(a.data, good) {
		t.Error("data and protection information aren't those of the second half")
	}
	// Without WRPROTECT the disk makes its own.
	h.do("89 00 0000000000000005 000000 02 00 00", cat(next, old), 0).good()
	if a := h.run(transfer(0x28, 5, 2, 0x20), nil, 1040).good(); !bytes.Equal(a.data, sealed(old, 512, 0, 5, 1)) {
		t.Error("not the protection information that the standard says")
	}
	h.do("89 c0 0000000000000005 000000 02 00 00", nil, 0).field(1, 7)
	two := newHost(t, 1<<20, lun.DiskOptions{Protection: 2})
	two.do(cdb, nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	plain := newHost(t, 1<<20, lun.DiskOptions{})
	plain.do(cdb, nil, 0).field(1, 5)
}

func TestOrWriteProtected(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Protection: 1})
	const n = 150 // more than one batch
	a, b, sum := pattern(n*512, 1), pattern(n*512, 77), pattern(n*512, 1)
	for i := range sum {
		sum[i] |= b[i]
	}
	h.run(transfer(0x2a, 5, n, 0x20), sealed(a, 512, 7, 5, 1), 0).good()
	bad := sealed(b, 512, 8, 5, 1)
	bad[len(bad)-1] ^= 1
	h.run(transfer(0x8b, 5, n, 0x20), bad, 0).fails(lun.AbortedCommand, lun.ASCReferenceTagCheckFailed)
	if got := h.run(transfer(0x28, 5, n, 0), nil, len(a)).good(); !bytes.Equal(got.data, a) {
		t.Error("what failed a check changed something")
	}
	h.run(transfer(0x8b, 5, n, 0x20), sealed(b, 512, 8, 5, 1), 0).good()
	if got := h.run(transfer(0x28, 5, n, 0x20), nil, n*520).good(); !bytes.Equal(got.data, sealed(sum, 512, 8, 5, 1)) {
		t.Error("not the OR with the tags of the data-out and a new guard")
	}
	// What is on the medium is checked too.
	h.run(transfer(0x2a, 5, 1, 0x60), cat(a[:512], make([]byte, 8)), 0).good()
	h.run(transfer(0x8b, 5, 1, 0x20), sealed(b[:512], 512, 8, 5, 1), 0).fails(lun.AbortedCommand, lun.ASCGuardCheckFailed)
}

// orWrite32 is ORWRITE(32) of one block at 9.
func (h *host) orWrite32(operation, policy byte, expected, next uint32, block []byte) answer {
	h.t.Helper()
	return h.run(cat([]byte{0x7f, 0, operation, policy, 0, 0, 0, 0x18, 0, 0x0e, 0, 0}, be(8, 9), be(4, uint64(expected)), be(4, uint64(next)), be(4, 1)), block, 0)
}

// TestOrWriteGeneration goes through table 29 of SBC-4.
func TestOrWriteGeneration(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	block := func(b byte) []byte { return bytes.Repeat([]byte{b}, 512) }
	clear := func() { h.run(transfer(0x2a, 9, 1, 0), block(0), 0).good() }
	h.orWrite32(0, 0, 0, 5, block(1)).good() // NEW ORWGENERATION doesn't count
	h.orWrite32(0, 0, 0, 5, block(2)).good()
	if a := h.run(transfer(0x28, 9, 1, 0), nil, 512).good(); a.data[0] != 3 {
		t.Errorf("1 OR 2 is %d", a.data[0])
	}
	h.orWrite32(0, 0, 1, 0, block(4)).fails(lun.IllegalRequest, lun.ASCORWriteGenerationDoesNotMatch)
	h.orWrite32(1, 7, 1, 2, block(4)).fails(lun.IllegalRequest, lun.ASCORWriteGenerationDoesNotMatch)
	h.orWrite32(1, 7, 0, 2, block(2)).good()
	if a := h.run(transfer(0x28, 9, 1, 0), nil, 512).good(); a.data[0] != 2 {
		t.Errorf("3 AND 2 is %d", a.data[0])
	}
	// ORWRITE(16) is of generation 0.
	h.run(transfer(0x8b, 9, 1, 0), block(1), 0).fails(lun.IllegalRequest, lun.ASCORWriteGenerationDoesNotMatch)
	current := uint32(2)
	for policy, want := range map[byte]string{0: "PPC", 2: "PDC", 3: "PPP", 5: "PDD", 7: "PCC"} {
		h.orWrite32(1, policy, current, current+1, block(0)).good()
		current++
		for i, generation := range []uint32{current, current - 1, 77} {
			clear()
			a, done := h.orWrite32(0, 0, generation, 0, block(1)), byte(0)
			if want[i] == 'C' {
				a.fails(lun.IllegalRequest, lun.ASCORWriteGenerationDoesNotMatch)
			} else {
				a.good()
			}
			if want[i] == 'P' {
				done = 1
			}
			if a := h.run(transfer(0x28, 9, 1, 0), nil, 512).good(); a.data[0] != done {
				t.Errorf("policy %d, generation %d: wrote %d, want %d", policy, i, a.data[0], done)
			}
		}
	}
	h.disk.Notify(nil, lun.LogicalUnitReset)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCBusDeviceReset)
	h.orWrite32(0, 0, current, 0, block(1)).good()
	h.disk.Notify(nil, lun.HardReset)
	h.do("00 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
	h.orWrite32(0, 0, current, 0, block(1)).fails(lun.IllegalRequest, lun.ASCORWriteGenerationDoesNotMatch)
	h.orWrite32(0, 0, 0, 0, block(1)).good()
	h.orWrite32(2, 0, 0, 0, block(1)).field(2, 2)
	h.orWrite32(1, 1, 0, 0, block(1)).field(3, 3)
}
