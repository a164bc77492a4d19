package cache_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"lunlab/lun/store"
	"lunlab/lun/store/cache"
	"lunlab/lun/store/mem"
	"lunlab/lun/store/storetest"
)

func below(t *testing.T, size int64) *mem.Store {
	t.Helper()
	s, err := mem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return cache.New(below(t, storetest.Size), 0)
	}, storetest.Options{})
}

// A small cache has to make room all the time.
func TestSmallStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return cache.New(below(t, storetest.Size), 16<<10)
	}, storetest.Options{})
}

func write(t *testing.T, s store.Store, off int64, b byte) {
	t.Helper()
	if _, err := s.WriteAt(bytes.Repeat([]byte{b}, cache.BlockSize), off); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, s store.Store, off int64) byte {
	t.Helper()
	p := make([]byte, cache.BlockSize)
	if _, err := s.ReadAt(p, off); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, bytes.Repeat(p[:1], len(p))) {
		t.Fatalf("the block at %d is torn", off)
	}
	return p[0]
}

func TestPowerCut(t *testing.T) {
	s := cache.New(below(t, 1<<20), 0)
	for i := range int64(4) {
		write(t, s, i*512, 1)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	for i := range int64(4) {
		write(t, s, i*512, 2)
	}
	if err := s.SyncRange(512, 512); err != nil {
		t.Fatal(err)
	}
	if got := s.Dirty(); got != 3*512 {
		t.Errorf("%d bytes are dirty, want 1536", got)
	}
	if err := s.PowerCut(func(off int64) bool { return off == 1024 }); err != nil {
		t.Fatal(err)
	}
	for i, want := range []byte{1, 2, 2, 1} {
		if got := read(t, s, int64(i)*512); got != want {
			t.Errorf("block %d holds %d after the power cut, want %d", i, got, want)
		}
	}
}

// TestPowerCuts writes, syncs and cuts the power at random. Whatever was synced
// last, or written later, may be there; nothing older.
func TestPowerCuts(t *testing.T) {
	const blocks = 64
	r := rand.New(rand.NewPCG(5, 6))
	s := cache.New(below(t, blocks*512), 8<<10)
	var oldest, newest [blocks]byte // what may be found
	for step := range 20000 {
		i := r.IntN(blocks)
		switch r.IntN(20) {
		case 0:
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			oldest = newest
		case 1:
			if err := s.SyncRange(int64(i)*512, 512); err != nil {
				t.Fatal(err)
			}
			oldest[i] = newest[i]
		case 2:
			if err := s.PowerCut(func(int64) bool { return r.IntN(2) == 0 }); err != nil {
				t.Fatal(err)
			}
			for i := range newest {
				got := read(t, s, int64(i)*512)
				if got-oldest[i] > newest[i]-oldest[i] {
					t.Fatalf("step %d: block %d holds %d, want %d to %d", step, i, got, oldest[i], newest[i])
				}
				oldest[i], newest[i] = got, got
			}
		default:
			if newest[i]-oldest[i] < 200 {
				newest[i]++
				write(t, s, int64(i)*512, newest[i])
			}
		}
	}
}

// refusing is a store below that can't be written to for a while.
type refusing struct {
	*mem.Store
	err error
}

func (r *refusing) WriteAt(p []byte, off int64) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.Store.WriteAt(p, off)
}

func TestFailedSyncLosesNothing(t *testing.T) {
	under := &refusing{Store: below(t, 1<<20)}
	s := cache.New(under, 0)
	write(t, s, 512, 7)
	under.err = errors.New("broken")
	if err := s.Sync(); !errors.Is(err, under.err) {
		t.Errorf("Sync: %v", err)
	}
	if got := read(t, s, 512); got != 7 {
		t.Errorf("the block holds %d after a Sync that failed, want 7", got)
	}
	under.err = nil
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// meddling is a store below in the middle of whose calls other things happen.
type meddling struct {
	*mem.Store
	during func()
}

func (m *meddling) meddle() {
	if f := m.during; f != nil {
		m.during = nil
		f()
	}
}

func (m *meddling) Zero(off, n int64) error {
	m.meddle()
	return m.Store.Unmap(off, n)
}

func (m *meddling) Extent(off, limit int64) (bool, int64, error) {
	mapped, n, err := m.Store.Extent(off, limit)
	m.meddle()
	return mapped, n, err
}

// TestWriteDuringZero writes a part of a block that is being made zero. The rest of
// it is zero then, wherever it was before.
func TestWriteDuringZero(t *testing.T) {
	for _, synced := range []bool{false, true} {
		under := &meddling{Store: below(t, 1<<20)}
		s := cache.New(under, 0)
		write(t, s, 1024, 0xff)
		if synced {
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		want := make([]byte, cache.BlockSize)
		copy(want[8:], "new data")
		under.during = func() {
			if _, err := s.WriteAt(want[8:16], 1024+8); err != nil {
				t.Error(err)
			}
		}
		if err := s.Zero(1024, 4096); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := s.ReadAt(got, 1024); err != nil || !bytes.Equal(got, want) {
			t.Errorf("synced before: %v: the block is %x after the Zero, %v; want %x", synced, got[:24], err, want[:24])
		}
	}
}

// TestFailedZero has a Zero fail: what was in the cache still is.
func TestFailedZero(t *testing.T) {
	under := &refusing{Store: below(t, 1<<20)}
	s := cache.New(struct{ store.Store }{under}, 0) // which makes zeros by WriteAt
	write(t, s, 512, 7)
	under.err = errors.New("broken")
	if err := s.Zero(0, 4096); !errors.Is(err, under.err) {
		t.Errorf("Zero: %v", err)
	}
	if got := read(t, s, 512); got != 7 {
		t.Errorf("the block holds %d after a Zero that failed, want 7", got)
	}
}

// TestExtentDuringSync has a block move to the store below after that was asked
// for it.
func TestExtentDuringSync(t *testing.T) {
	under := &meddling{Store: below(t, 1<<20)}
	s := cache.New(under, 0)
	write(t, s, 512, 7)
	under.during = func() {
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
	}
	if mapped, n, err := s.Extent(512, 512); !mapped || n != 512 || err != nil {
		t.Errorf("Extent(512, 512) = %v, %d, %v of a block that is there", mapped, n, err)
	}
}

// TestResizeWithinBlock cuts a block that is in the cache, and brings its place back.
func TestResizeWithinBlock(t *testing.T) {
	s := cache.New(below(t, 1<<20), 0)
	write(t, s, 512, 0xff)
	for _, size := range []int64{600, 1 << 20} {
		if err := s.Resize(size); err != nil {
			t.Fatal(err)
		}
	}
	want := append(bytes.Repeat([]byte{0xff}, 88), make([]byte, 424)...)
	got := make([]byte, len(want))
	if _, err := s.ReadAt(got, 512); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the block is %x, %v; want %x", got, err, want)
	}
}
