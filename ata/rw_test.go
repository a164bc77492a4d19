package ata_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"lunlab/ata"
	"lunlab/lun/store"
)

// forms are the commands that read and write, in all their forms.
var forms = []struct {
	name        string
	read, write func(lba uint64, n uint16) ata.Taskfile
}{
	{"SECTORS", form(cmd28, 0x20), form(cmd28, 0x30)},
	{"SECTORS EXT", form(cmd48, 0x24), form(cmd48, 0x34)},
	{"MULTIPLE", form(cmd28, 0xc4), form(cmd28, 0xc5)},
	{"MULTIPLE EXT", form(cmd48, 0x29), form(cmd48, 0x39)},
	{"MULTIPLE FUA EXT", form(cmd48, 0x29), form(cmd48, 0xce)},
	{"DMA", form(cmd28, 0xc8), form(cmd28, 0xca)},
	{"DMA EXT", form(cmd48, 0x25), form(cmd48, 0x35)},
	{"DMA FUA EXT", form(cmd48, 0x25), form(cmd48, 0x3d)},
	{"FPDMA QUEUED", queuedForm(0x60, 0x40), queuedForm(0x61, 0x40)},
	{"FPDMA QUEUED with FUA", queuedForm(0x60, 0xc0), queuedForm(0x61, 0xc0)},
}

func form(f func(byte, uint64, uint16) ata.Taskfile, code byte) func(uint64, uint16) ata.Taskfile {
	return func(lba uint64, n uint16) ata.Taskfile { return f(code, lba, n) }
}

func queuedForm(code, device byte) func(uint64, uint16) ata.Taskfile {
	return func(lba uint64, n uint16) ata.Taskfile {
		f := queued(code, 17, lba, n)
		f.Device = device
		return f
	}
}

// TestTransfers writes by each form and reads by all others.
func TestTransfers(t *testing.T) {
	for _, size := range []int{512, 4096} {
		h := newHost(t, 64<<20, ata.Options{BlockSize: size})
		blocks := uint64(64 << 20 / size)
		for i, w := range forms {
			for j, r := range forms {
				lba, n := uint64(3+100*i), uint16(1+13*i)
				data := pattern(int(n)*size, byte(16*i+j))
				h.good(w.write(lba, n), data)
				h.same(fmt.Sprintf("%s, %s", w.name, r.name), h.good(r.read(lba, n), nil), data)
			}
			for _, f := range []ata.Taskfile{w.read(blocks, 1), w.read(blocks-1, 2), w.read(1<<28-1, 1)} {
				got := h.do(f, nil)
				if got.Answer.Error != ata.ErrorIDNF || got.Moved != 0 {
					t.Errorf("%s beyond the end: %+v", w.name, got.Answer)
				}
				h.drive.Do(&ata.Task{Taskfile: readLog(0x10, 0, 1)})
			}
		}
		// A count of 0 is all that the field has no room for.
		h.same("256", h.good(cmd28(0xc8, 0, 0), nil)[255*size:], h.good(cmd28(0xc8, 255, 1), nil))
		if size == 512 {
			h.same("65536", h.good(cmd48(0x25, 0, 0), nil)[65535*size:], h.good(cmd48(0x25, 65535, 1), nil))
		}
		h.fails(ata.Taskfile{Command: 0x20, Count: 1}, nil, ata.ErrorABRT) // CHS
		h.good(cmd28(0x40, 5, 9), nil)
		h.good(cmd48(0x42, 5, 9), nil)
		h.fails(cmd48(0x42, blocks-1, 9), nil, ata.ErrorIDNF)
	}
}

// TestMultiple turns READ MULTIPLE off and on.
func TestMultiple(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	if w := h.identify(); w[47] != 0x8010 || w[59]&0x1ff != 0x110 {
		t.Errorf("words 47 and 59 are %#x and %#x", w[47], w[59])
	}
	h.fails(ata.Taskfile{Command: 0xc6, Count: 3}, nil, ata.ErrorABRT)
	h.fails(ata.Taskfile{Command: 0xc6, Count: 32}, nil, ata.ErrorABRT)
	h.good(ata.Taskfile{Command: 0xc6, Count: 0}, nil)
	h.fails(cmd28(0xc4, 0, 1), nil, ata.ErrorABRT)
	h.fails(cmd28(0xc5, 0, 1), make([]byte, 512), ata.ErrorABRT)
	h.good(ata.Taskfile{Command: 0xc6, Count: 8}, nil)
	h.good(cmd28(0xc4, 0, 1), nil)
	if w := h.identify(); w[59]&0x1ff != 0x108 {
		t.Errorf("word 59 is %#x", w[59])
	}
}

// TestBadBlocks makes blocks bad, in both ways, and heals them.
func TestBadBlocks(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{PhysicalExponent: 3, LowestAligned: 1})
	if !h.drive.Spoil(1000, 2) || h.drive.Spoil(2047, 2) || h.drive.Spoil(0, 0) {
		t.Error("Spoil")
	}
	bad := h.fails(cmd48(0x25, 990, 20), nil, ata.ErrorUNC)
	if bad.Answer.LBA != 1000 || bad.Ending != ata.RegisterFIS {
		t.Errorf("%+v", bad.Answer)
	}
	if bad := h.fails(cmd28(0xc8, 1001, 20), nil, ata.ErrorUNC); bad.Answer.LBA != 1001 {
		t.Errorf("%+v", bad.Answer)
	}
	h.fails(cmd28(0x40, 1001, 1), nil, ata.ErrorUNC)
	h.good(cmd28(0xca, 1000, 1), make([]byte, 512))
	h.good(cmd28(0xc8, 1000, 1), nil)
	h.good(cmd28(0xca, 1001, 1), make([]byte, 512))
	h.good(cmd28(0xc8, 990, 20), nil)
	// WRITE UNCORRECTABLE EXT does it to whole physical sectors: 1 to 8, 9 to 16, ...
	f := cmd48(0x45, 10, 8)
	h.fails(f, nil, ata.ErrorABRT)
	f.Feature = 0x55
	h.good(f, nil)
	h.good(cmd28(0xc8, 8, 1), nil)
	h.good(cmd28(0xc8, 25, 1), nil)
	for lba := uint64(9); lba < 25; lba++ {
		if bad := h.fails(cmd28(0xc8, lba, 1), nil, ata.ErrorUNC); bad.Answer.LBA != lba {
			t.Errorf("%+v", bad.Answer)
		}
	}
	// Flagged ones are worth no entry in the logs.
	before := h.log(3, 0, 1)[500]
	f.Feature, f.LBA, f.Count = 0xaa, 40, 1
	h.good(f, nil)
	h.fails(cmd28(0xc8, 40, 1), nil, ata.ErrorUNC)
	if after := h.log(3, 0, 1)[500]; after != before {
		t.Errorf("%d errors logged, %d before", after, before)
	}
	h.good(cmd28(0xca, 33, 8), make([]byte, 8*512))
	h.good(cmd28(0xc8, 33, 8), nil)
	f.Feature = 0x55
	for _, lba := range []uint64{0, 2047} {
		f.LBA, f.Count = lba, 1
		h.good(f, nil)
	}
	h.good(cmd28(0xc8, 1, 1), nil)
	h.fails(cmd28(0xc8, 0, 1), nil, ata.ErrorUNC)
}

// failing is a store that fails as it is told.
type failing struct {
	store.Store
	err error
}

func (f *failing) ReadAt(p []byte, off int64) (int, error) {
	if f.err != nil {
		return 512, f.err
	}
	return f.Store.ReadAt(p, off)
}

func (f *failing) WriteAt(p []byte, off int64) (int, error) {
	if f.err != nil {
		return 512, f.err
	}
	return f.Store.WriteAt(p, off)
}

func (f *failing) Sync() error { return f.err }

// TestStoreErrors says what becomes of errors of the store.
func TestStoreErrors(t *testing.T) {
	s := &failing{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, ata.Options{})
	for _, c := range []struct {
		err           error
		read, write   byte
		writeIsFaulty bool
	}{
		{syscall.EIO, ata.ErrorUNC, 0, true},
		{fmt.Errorf("write: %w", syscall.ENOSPC), ata.ErrorABRT, ata.ErrorABRT, false},
		{syscall.EROFS, ata.ErrorABRT, ata.ErrorABRT, false},
		{errors.New("what?"), 0, 0, true},
	} {
		s.err = c.err
		got := h.fails(cmd48(0x25, 7, 4), nil, c.read)
		if c.read != 0 && got.Answer.LBA != 8 {
			t.Errorf("%v: LBA %d", c.err, got.Answer.LBA)
		}
		got = h.fails(cmd48(0x35, 7, 4), make([]byte, 4*512), c.write)
		if faulty := got.Answer.Status&ata.StatusDF != 0; faulty != c.writeIsFaulty {
			t.Errorf("%v: status %#x", c.err, got.Answer.Status)
		}
		h.fails(ata.Taskfile{Command: 0xea}, nil, c.write)
		s.err = nil
		h.good(ata.Taskfile{Command: 0xe7}, nil)
	}
}

// TestVerify reads and verifies by a store that isn't memory.
func TestVerify(t *testing.T) {
	s := &failing{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, ata.Options{})
	data := pattern(300*512, 1)
	h.good(cmd48(0x35, 5, 300), data)
	h.same("blocks", h.good(cmd48(0x25, 5, 300), nil), data)
	h.good(cmd48(0x42, 5, 300), nil)
	s.err = syscall.EIO
	if r := h.fails(cmd48(0x42, 5, 300), nil, ata.ErrorUNC); r.Answer.LBA != 6 {
		t.Errorf("the first bad sector is %d", r.Answer.LBA)
	}
}

// synced counts what is made durable.
type synced struct {
	store.Store
	ranges, all int
}

func (s *synced) SyncRange(off, n int64) error { s.ranges++; return nil }
func (s *synced) Sync() error                  { s.all++; return nil }

// TestDurability looks when writes are made durable.
func TestDurability(t *testing.T) {
	s := &synced{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, ata.Options{})
	block := make([]byte, 512)
	expect := func(what string, ranges, all int) {
		t.Helper()
		if s.ranges != ranges || s.all != all {
			t.Errorf("%s: %d ranges and %d times all, want %d and %d", what, s.ranges, s.all, ranges, all)
		}
		s.ranges, s.all = 0, 0
	}
	h.good(cmd48(0x35, 0, 1), block)
	expect("WRITE DMA EXT", 0, 0)
	h.good(cmd48(0x3d, 0, 1), block)
	expect("WRITE DMA FUA EXT", 1, 0)
	f := queued(0x61, 0, 0, 1)
	h.good(f, block)
	expect("WRITE FPDMA QUEUED", 0, 0)
	f.Device |= 0x80
	h.good(f, block)
	expect("with FUA", 1, 0)
	f.Command = 0x60
	h.good(f, nil)
	expect("READ FPDMA QUEUED with FUA", 1, 0)
	h.good(ata.Taskfile{Command: 0xea}, nil)
	expect("FLUSH CACHE EXT", 0, 1)
	h.good(ata.Taskfile{Command: 0xef, Feature: 0x82}, nil)
	expect("write cache off", 0, 1)
	h.good(cmd48(0x35, 0, 1), block)
	expect("WRITE DMA EXT without a cache", 1, 0)
	if w := h.identify(); w[82]&0x20 == 0 || w[85]&0x20 != 0 {
		t.Errorf("words 82 and 85: %#x, %#x", w[82], w[85])
	}
	h.drive.PowerCycle(nil)
	if w := h.identify(); w[85]&0x20 == 0 {
		t.Errorf("word 85 after a power cycle: %#x", w[85])
	}
}
