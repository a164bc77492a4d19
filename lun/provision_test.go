package lun_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/mem"
)

func unmapList(ranges ...[2]uint64) []byte {
	b := cat(be(2, uint64(6+16*len(ranges))), be(2, uint64(16*len(ranges))), be(4, 0))
	for _, r := range ranges {
		b = cat(b, be(8, r[0]), be(4, r[1]), be(4, 0))
	}
	return b
}

func (h *host) unmap(ranges ...[2]uint64) answer {
	h.t.Helper()
	list := unmapList(ranges...)
	return h.run(cat([]byte{0x42, 0, 0, 0, 0, 0, 0}, be(2, uint64(len(list))), []byte{0}), list, 0)
}

func TestUnmap(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true})
	h.run(transfer(0x2a, 0, 64, 0), pattern(64*512, 1), 0).good()
	h.unmap([2]uint64{3, 2}, [2]uint64{10, 1}, [2]uint64{20, 0}).good()
	h.do("9e 12 0000000000000000 00000100 00 00", nil, 256).is("00000064 00000007" +
		"0000000000000000 00000003 00000000" +
		"0000000000000003 00000002 01000000" +
		"0000000000000005 00000005 00000000" +
		"000000000000000a 00000001 01000000" +
		"000000000000000b 00000035 00000000" +
		"0000000000000040 000007c0 01000000")
	want := pattern(64*512, 1)
	clear(want[3*512 : 5*512])
	clear(want[10*512 : 11*512])
	if a := h.run(transfer(0x28, 0, 64, 0), nil, 64*512).good(); !bytes.Equal(a.data, want) {
		t.Error("an unmapped block isn't zero, or another isn't what it was")
	}
	h.unmap([2]uint64{2048, 0}).good()
	h.unmap([2]uint64{2049, 0}).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.unmap().good()
	h.do("42 00 00000000 00 0000 00", nil, 0).good()
	h.unmap([2]uint64{2047, 2}).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.unmap([2]uint64{1 << 63, 1}).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.do("42 00 00000000 00 0007 00", make([]byte, 7), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("42 00 00000000 00 0018 00", make([]byte, 8), 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.do("42 00 00000000 00 0018 00", nil, 0).fails(lun.IllegalRequest, lun.ASCParameterListLengthError)
	h.unmap(make([][2]uint64, 257)...).parameter(2, 7)
	big := newHost(t, 1<<40, lun.DiskOptions{Thin: true})
	big.unmap([2]uint64{0, 1 << 20}).good()
	big.unmap([2]uint64{0, 1 << 20}, [2]uint64{0, 1}).parameter(8+16+8, 7)
}

func TestLBAStatus(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true})
	h.do("9e 12 0000000000000800 00000100 00 00", nil, 256).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.do("9e 12 00000000000007ff 00000100 00 00", nil, 256).is("00000014 00000007 00000000000007ff 00000001 01000000")
	if a := h.do("9e 12 0000000000000000 00000004 00 00", nil, 256).good(); a.in != 4 {
		t.Errorf("allocation length 4: %d bytes", a.in)
	}
	// Half a block that is mapped makes the block so.
	s := mustMem(t, 1<<20)
	if _, err := s.WriteAt([]byte{1}, 3*4096+1024); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteAt([]byte{1}, 4*4096+1024); err != nil {
		t.Fatal(err)
	}
	h = hostOf(t, s, lun.DiskOptions{Thin: true, BlockSize: 4096})
	h.do("9e 12 0000000000000000 00000100 00 00", nil, 256).is("00000034 00000007" +
		"0000000000000000 00000003 01000000" +
		"0000000000000003 00000002 00000000" +
		"0000000000000005 000000fb 01000000")
	h = newHost(t, 1<<20, lun.DiskOptions{})
	h.do("9e 12 0000000000000000 00000100 00 00", nil, 256).is("00000014 00000007 0000000000000000 00000800 00000000")
}

func TestWriteSame(t *testing.T) {
	s := mustMem(t, 1<<30)
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	block := pattern(512, 5)
	for i, c := range []struct {
		cdb  []byte
		data []byte
		want []byte
		used bool // the block is mapped afterwards
	}{
		{transfer(0x41, 100, 300, 0), block, block, true},
		{transfer(0x93, 5000, 300, 0), block, block, true},
		{transfer(0x93, 100, 300, 0x08), block, block, true}, // can't be unmapped
		{transfer(0x41, 100, 300, 0), make([]byte, 512), make([]byte, 512), true},
		{transfer(0x93, 100, 300, 0x08), make([]byte, 512), make([]byte, 512), false},
		{transfer(0x41, 5000, 300, 0x08), make([]byte, 512), make([]byte, 512), false},
		{transfer(0x93, 9000, 300, 0x01), nil, make([]byte, 512), true},
		{transfer(0x93, 9000, 300, 0x09), nil, make([]byte, 512), false},
	} {
		h.run(c.cdb, c.data, 0).good()
		lba := uint64(100)
		switch i {
		case 1, 5:
			lba = 5000
		case 6, 7:
			lba = 9000
		}
		for _, at := range []uint64{lba, lba + 299} {
			if a := h.run(transfer(0x28, at, 1, 0), nil, 512).good(); !bytes.Equal(a.data, c.want) {
				t.Errorf("%x: block %d is %x", c.cdb, at, a.data[:8])
			}
		}
		if mapped, _, err := s.Extent(int64(lba*512), 1); mapped != c.used || err != nil {
			t.Errorf("%x: mapped %v, %v; want %v", c.cdb, mapped, err, c.used)
		}
	}
	h.run(transfer(0x41, 1000, 0, 0), block, 0).field(7, 7) // to the end is too much
	h.run(transfer(0x93, 1000, 0, 0), block, 0).field(10, 7)
	h.run(transfer(0x93, 1<<21-65535, 0, 0), block, 0).good()
	if a := h.run(transfer(0x88, 1<<21-1, 1, 0), nil, 512).good(); !bytes.Equal(a.data, block) {
		t.Error("WRITE SAME of 0 blocks didn't reach the end")
	}
	h.run(transfer(0x93, 0, 65536, 0), block, 0).field(10, 7)
	h.run(transfer(0x93, 1<<21-1, 2, 0), block, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.run(transfer(0x93, 0, 1, 0), block[:511], 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	h.run(transfer(0x93, 0, 1, 0), cat(block, block), 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	h.run(transfer(0x93, 0, 1, 0x10), block, 0).field(1, 4) // ANCHOR
	thick := newHost(t, 1<<26, lun.DiskOptions{})
	thick.run(transfer(0x93, 0, 1, 0x08), block, 0).field(1, 3)
	thick.run(transfer(0x41, 0, 1, 0x08), block, 0).field(1, 3)
	thick.run(transfer(0x93, 0, 9, 0x01), nil, 0).good()
}

func TestUnmapBy(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, UnmapBy: lun.ByWriteSame10})
	h.do("12 01 b2 00ff 00", nil, 255).is("00b2 0004 00260200")
	if b := h.do("12 01 b0 00ff 00", nil, 255).good().data; !bytes.Equal(b[20:28], make([]byte, 8)) {
		t.Errorf("limits of UNMAP, which isn't there: %x", b[20:28])
	}
	h.unmap([2]uint64{0, 1}).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	h.run(transfer(0x93, 0, 1, 0x08), make([]byte, 512), 0).field(1, 3)
	h.run(transfer(0x41, 0, 1, 0x08), make([]byte, 512), 0).good()
}

func TestReadCapacity(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, PhysicalExponent: 3, LowestAligned: 5})
	h.do("25 00 00000000 0000 00 00", nil, 8).is("000007ff 00000200")
	h.do("25 00 00000001 0000 00 00", nil, 8).field(5, 0)
	h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).is("00000000000007ff 00000200 00 03 c005" + fmt.Sprintf("%032x", 0))
	h.do("9e 10 0000000000000000 00000009 00 00", nil, 32).is("00000000000007ff 00")
	big := newHost(t, 1<<42, lun.DiskOptions{BlockSize: 512})
	big.do("25 00 00000000 0000 00 00", nil, 8).is("ffffffff 00000200")
	big.do("9e 10 0000000000000000 0000000c 00 00", nil, 12).is("00000001ffffffff 00000200")
}

// broken is a store whose calls fail with what err holds.
type broken struct {
	*mem.Store
	err   atomic.Pointer[error]
	syncs atomic.Int32
}

func (b *broken) fail(err error) { b.err.Store(&err) }

func (b *broken) failing() error {
	if p := b.err.Load(); p != nil {
		return *p
	}
	return nil
}

func (b *broken) ReadAt(p []byte, off int64) (int, error) {
	if err := b.failing(); err != nil {
		return 0, err
	}
	return b.Store.ReadAt(p, off)
}

func (b *broken) WriteAt(p []byte, off int64) (int, error) {
	if err := b.failing(); err != nil {
		return 0, err
	}
	return b.Store.WriteAt(p, off)
}

func (b *broken) Sync() error {
	b.syncs.Add(1)
	return b.failing()
}

func TestStoreErrors(t *testing.T) {
	s := &broken{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	for _, c := range []struct {
		err         error
		read, write lun.SenseKey
		rc, wc      uint16
	}{
		{fmt.Errorf("disk: %w", syscall.EIO), lun.MediumError, lun.MediumError, lun.ASCUnrecoveredReadError, lun.ASCWriteError},
		{fmt.Errorf("disk: %w", syscall.ENOSPC), lun.HardwareError, lun.DataProtect, lun.ASCInternalTargetFailure, lun.ASCSpaceAllocationFailed},
		{syscall.EROFS, lun.HardwareError, lun.DataProtect, lun.ASCInternalTargetFailure, lun.ASCWriteProtected},
		{errors.New("odd"), lun.HardwareError, lun.HardwareError, lun.ASCInternalTargetFailure, lun.ASCInternalTargetFailure},
	} {
		s.fail(c.err)
		a := h.run(transfer(0x28, 7, 2, 0), nil, 1024).fails(c.read, c.rc)
		if a.sense[0] != 0xf0 || !bytes.Equal(a.sense[3:7], be(4, 7)) {
			t.Errorf("READ: sense %x; want LBA 7 in INFORMATION", a.sense)
		}
		h.run(transfer(0x2a, 7, 2, 0), make([]byte, 1024), 0).fails(c.write, c.wc)
		h.run(transfer(0x41, 7, 2, 0), pattern(512, 1), 0).fails(c.write, c.wc)
		h.run(transfer(0x2f, 7, 2, 0), nil, 0).fails(c.read, c.rc)
		h.do("35 00 00000000 00 0000 00", nil, 0).fails(c.write, c.wc)
	}
}

// A write is made durable when FUA says so, or without a write cache.
func TestDurability(t *testing.T) {
	block := make([]byte, 512)
	for _, c := range []struct {
		name    string
		through bool
		cdb     []byte
		want    int32
	}{
		{"WRITE", false, transfer(0x2a, 0, 1, 0), 0},
		{"WRITE FUA", false, transfer(0x2a, 0, 1, 0x08), 1},
		{"WRITE(16) FUA", false, transfer(0x8a, 0, 1, 0x08), 1},
		{"WRITE(6)", false, transfer(0x0a, 0, 1, 0), 0},
		{"WRITE SAME", false, transfer(0x93, 0, 1, 0), 0},
		{"WRITE AND VERIFY", false, transfer(0x2e, 0, 1, 0), 1},
		{"SYNCHRONIZE CACHE(10)", false, transfer(0x35, 0, 0, 0), 1},
		{"SYNCHRONIZE CACHE(16)", false, transfer(0x91, 0, 0, 2), 1},
		{"WRITE without cache", true, transfer(0x2a, 0, 1, 0), 1},
		{"WRITE(6) without cache", true, transfer(0x0a, 0, 1, 0), 1},
		{"WRITE SAME without cache", true, transfer(0x93, 0, 1, 0), 1},
		{"READ", false, transfer(0x28, 0, 1, 0), 0},
		{"READ FUA", false, transfer(0x28, 0, 1, 0x08), 1},
	} {
		s := &broken{Store: mustMem(t, 1<<20)}
		h := hostOf(t, s, lun.DiskOptions{WriteThrough: c.through})
		h.run(c.cdb, block, 512).good()
		if got := s.syncs.Load(); got != c.want {
			t.Errorf("%s: %d syncs, want %d", c.name, got, c.want)
		}
	}
}

func TestThinPoolFull(t *testing.T) {
	s, err := mem.NewLimited(1<<20, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	h := hostOf(t, s, lun.DiskOptions{Thin: true})
	h.run(transfer(0x2a, 0, 256, 0), make([]byte, 128<<10), 0).good()
	h.run(transfer(0x2a, 256, 1, 0), make([]byte, 512), 0).fails(lun.DataProtect, lun.ASCSpaceAllocationFailed)
	h.unmap([2]uint64{0, 256}).good()
	h.run(transfer(0x2a, 256, 1, 0), make([]byte, 512), 0).good()
}

var _ store.Sparse = (*broken)(nil)
