package mem_test

import (
	"errors"
	"runtime"
	"syscall"
	"testing"

	"lunlab/lun/store"
	"lunlab/lun/store/mem"
	"lunlab/lun/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, storetest.Size) }, storetest.Options{})
}

func open(t testing.TB, size int64) *mem.Store {
	t.Helper()
	s, err := mem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTebibyteTakesNoMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := open(t, 1<<40)
	if err := s.Unmap(0, s.Size()); err != nil {
		t.Fatal(err)
	}
	mapped, n, err := s.Extent(0, s.Size())
	runtime.ReadMemStats(&after)
	if mapped || n != s.Size() || err != nil {
		t.Errorf("Extent = %v, %d, %v; want a hole of all", mapped, n, err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 64<<10 {
		t.Errorf("opening and unmapping it took %d bytes", got)
	}
}

func TestUnmapGivesBack(t *testing.T) {
	s := open(t, 1<<40)
	p := make([]byte, 64<<10)
	for off := int64(0); off < 1<<40; off += 1 << 37 {
		if _, err := s.WriteAt(p, off); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.Used(), int64(8*64<<10); got != want {
		t.Fatalf("Used() = %d, want %d", got, want)
	}
	// The last sector of a chunk frees it, not the others.
	for i := int64(0); i < 64<<10; i += 512 {
		if got, want := s.Used(), int64(8*64<<10); got != want {
			t.Fatalf("Used() = %d after %d bytes were unmapped, want %d", got, i, want)
		}
		if err := s.Unmap(i, 512); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.Used(), int64(7*64<<10); got != want {
		t.Errorf("Used() = %d, want %d", got, want)
	}
	if err := s.Unmap(0, 1<<40); err != nil {
		t.Fatal(err)
	}
	if got := s.Used(); got != 0 {
		t.Errorf("Used() = %d after all was unmapped", got)
	}
}

func TestExtentPerSector(t *testing.T) {
	s := open(t, 1<<30)
	if _, err := s.WriteAt(make([]byte, 3*512), 5*512); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		off    int64
		mapped bool
		n      int64
	}{{0, false, 5 * 512}, {5 * 512, true, 3 * 512}, {6*512 + 1, true, 2*512 - 1}, {8 * 512, false, 1<<30 - 8*512}} {
		mapped, n, err := s.Extent(c.off, 1<<40)
		if mapped != c.mapped || n != c.n || err != nil {
			t.Errorf("Extent(%d) = %v, %d, %v; want %v, %d", c.off, mapped, n, err, c.mapped, c.n)
		}
	}
}

func TestLimit(t *testing.T) {
	s, err := mem.NewLimited(1<<30, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 192<<10)
	if n, err := s.WriteAt(p, 0); n != 128<<10 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteAt = %d, %v; want 131072, ENOSPC", n, err)
	}
	if err := s.Unmap(0, 64<<10); err != nil {
		t.Fatal(err)
	}
	if n, err := s.WriteAt(p[:64<<10], 128<<10); n != 64<<10 || err != nil {
		t.Errorf("WriteAt after an unmap = %d, %v", n, err)
	}
}

func TestBadSize(t *testing.T) {
	if _, err := mem.New(-1); err == nil {
		t.Error("New(-1) gave no error")
	}
}

func TestNoAllocations(t *testing.T) {
	s := open(t, 1<<30)
	p := make([]byte, 128<<10)
	if _, err := s.WriteAt(p, 1000); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		s.WriteAt(p, 1000)
		s.ReadAt(p, 1000)
		s.ReadAt(p, 1<<29)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Stores that share their room take it from each other, and give it back.
func TestRoom(t *testing.T) {
	r := mem.NewRoom(3 * 64 << 10)
	var stores [2]*mem.Store
	for i := range stores {
		s, err := r.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		stores[i] = s
	}
	a, b := stores[0], stores[1]
	if _, err := a.WriteAt(make([]byte, 2*64<<10), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.WriteAt([]byte{1}, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := b.WriteAt([]byte{1}, 64<<10); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteAt beyond the room = %d, %v; want ENOSPC", n, err)
	}
	if b.Used() != r.Limit() || a.Used() != r.Limit() {
		t.Errorf("Used() = %d and %d, want %d", a.Used(), b.Used(), r.Limit())
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Used() != 64<<10 {
		t.Errorf("Used() = %d after the other was closed, want 65536", b.Used())
	}
	if _, err := b.WriteAt([]byte{1}, 64<<10); err != nil {
		t.Error(err)
	}
}
