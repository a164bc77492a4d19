// Package storetest is the suite that every store has to pass. A store's own
// test calls [Run].
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"lunlab/lun/store"
)

// Options say what kind of store it is.
type Options struct {
	// Forgets is for a store that reads as zeros whatever was written.
	Forgets bool
}

// Size is what the suite asks stores to have, in bytes. It is no multiple of
// any power of two beyond 4,096.
const Size = 3<<20 + 5*4096

// Run runs the suite. Each test opens a store of [Size] bytes of zeros of its own.
func Run(t *testing.T, open func(t *testing.T) store.Store, o Options) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s store.Store)
		data bool // needs a store that remembers
	}{
		{"Zeros", zeros, false},
		{"Range", ranges, false},
		{"ReadBack", readBack, true},
		{"Model", model, true},
		{"Sparse", sparse, true},
		{"Zero", zero, true},
		{"Concurrent", concurrent, true},
		{"Resize", resize, false},
		{"Close", closed, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.data && o.Forgets {
				t.Skip("the store forgets what is written")
			}
			s := open(t)
			if s.Size() != Size {
				t.Fatalf("Size() = %d, want %d", s.Size(), Size)
			}
			c.run(t, s)
			if err := s.Close(); c.name != "Close" && err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

func zeros(t *testing.T, s store.Store) {
	check(t, s, make([]byte, Size))
}

// check compares all of the store with want, in pieces of odd sizes.
func check(t *testing.T, s store.Store, want []byte) {
	t.Helper()
	buf := make([]byte, 70001)
	for off := 0; off < len(want); {
		p := buf[:min(len(buf), len(want)-off)]
		for i := range p {
			p[i] = 0xa5
		}
		n, err := s.ReadAt(p, int64(off))
		if n != len(p) || err != nil {
			t.Fatalf("ReadAt(%d bytes, %d) = %d, %v", len(p), off, n, err)
		}
		if w := want[off : off+len(p)]; !bytes.Equal(p, w) {
			i := 0
			for p[i] == w[i] {
				i++
			}
			t.Fatalf("byte %d is %#x, want %#x", off+i, p[i], w[i])
		}
		off += len(p)
	}
}

// ranges checks that what isn't wholly inside is refused and changes nothing.
func ranges(t *testing.T, s store.Store) {
	sp, isSparse := s.(store.Sparse)
	z, isZeroer := s.(store.Zeroer)
	for _, c := range []struct{ off, n int64 }{
		{-1, 1}, {-1, 0}, {Size, 1}, {Size - 1, 2}, {Size + 1, 0}, {0, Size + 1}, {1 << 62, 1}, {1<<63 - 1, 1},
	} {
		p := bytes.Repeat([]byte{0xff}, int(min(c.n, Size+1)))
		if n, err := s.ReadAt(p, c.off); n != 0 || !errors.Is(err, store.ErrRange) {
			t.Errorf("ReadAt(%d bytes, %d) = %d, %v; want ErrRange", c.n, c.off, n, err)
		}
		if n, err := s.WriteAt(p, c.off); n != 0 || !errors.Is(err, store.ErrRange) {
			t.Errorf("WriteAt(%d bytes, %d) = %d, %v; want ErrRange", c.n, c.off, n, err)
		}
		if isSparse {
			if err := sp.Unmap(c.off, c.n); !errors.Is(err, store.ErrRange) {
				t.Errorf("Unmap(%d, %d) = %v; want ErrRange", c.off, c.n, err)
			}
		}
		if isZeroer {
			if err := z.Zero(c.off, c.n); !errors.Is(err, store.ErrRange) {
				t.Errorf("Zero(%d, %d) = %v; want ErrRange", c.off, c.n, err)
			}
		}
	}
	for _, off := range []int64{-1, Size, 1 << 62} {
		if _, _, err := store.Extent(s, off, 1); isSparse && !errors.Is(err, store.ErrRange) {
			t.Errorf("Extent(%d) = %v; want ErrRange", off, err)
		}
	}
	if n, err := s.ReadAt(nil, Size); n != 0 || err != nil {
		t.Errorf("ReadAt of nothing at the end = %d, %v", n, err)
	}
	if n, err := s.WriteAt(nil, Size); n != 0 || err != nil {
		t.Errorf("WriteAt of nothing at the end = %d, %v", n, err)
	}
	check(t, s, make([]byte, Size))
}

func readBack(t *testing.T, s store.Store) {
	want := make([]byte, Size)
	for _, c := range []struct{ off, n int }{
		{0, 512}, {Size - 1, 1}, {65535, 2}, {1000, 200000}, {Size - 4096, 4096}, {1 << 20, 1 << 20},
	} {
		p := want[c.off : c.off+c.n]
		fill(p, uint64(c.off))
		if n, err := s.WriteAt(p, int64(c.off)); n != c.n || err != nil {
			t.Fatalf("WriteAt(%d bytes, %d) = %d, %v", c.n, c.off, n, err)
		}
	}
	check(t, s, want)
	if err := s.Sync(); err != nil {
		t.Fatalf("Sync: %v", err)
	}
	check(t, s, want)
}

func fill(p []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), 1})
	r.Read(p)
}

// model does random things to the store and to a slice, and compares.
func model(t *testing.T, s store.Store) {
	r := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, Size)
	for i := range 400 {
		off := r.IntN(Size)
		n := r.IntN(min(Size-off, 1<<(6+r.IntN(13)))) + 1
		if r.IntN(2) == 0 {
			off, n = off&^4095, (n+4095)&^4095
			n = min(n, Size-off)
		}
		p := want[off : off+n]
		var err error
		switch op := r.IntN(4); op {
		case 0, 1:
			fill(p, uint64(i))
			_, err = s.WriteAt(p, int64(off))
		case 2:
			clear(p)
			err = store.Zero(s, int64(off), int64(n))
		case 3:
			if sp, ok := s.(store.Sparse); ok {
				clear(p)
				err = sp.Unmap(int64(off), int64(n))
			}
		}
		if err != nil {
			t.Fatalf("step %d, %d bytes at %d: %v", i, n, off, err)
		}
		if i%40 == 0 {
			check(t, s, want)
		}
	}
	check(t, s, want)
}

// extents checks that the extents cover the store without a gap and returns
// how many bytes are mapped.
func extents(t *testing.T, s store.Sparse) (mapped int64) {
	t.Helper()
	for off := int64(0); off < Size; {
		is, n, err := s.Extent(off, Size)
		if err != nil || n < 1 || n > Size-off {
			t.Fatalf("Extent(%d, %d) = %v, %d, %v", off, Size, is, n, err)
		}
		if is2, n2, err := s.Extent(off, 1); is2 != is || n2 != 1 || err != nil {
			t.Fatalf("Extent(%d, 1) = %v, %d, %v; want %v, 1", off, is2, n2, err, is)
		}
		if is {
			mapped += n
		} else {
			p := make([]byte, n)
			if _, err := s.ReadAt(p, off); err != nil {
				t.Fatal(err)
			}
			if i := bytes.IndexFunc(p, func(r rune) bool { return r != 0 }); i >= 0 {
				t.Fatalf("byte %d isn't mapped and isn't zero", off+int64(i))
			}
		}
		off += n
	}
	return mapped
}

func sparse(t *testing.T, s store.Store) {
	sp, ok := s.(store.Sparse)
	if !ok {
		t.Skip("not a store.Sparse")
	}
	want := make([]byte, Size)
	fill(want[1<<20:2<<20], 3)
	if _, err := s.WriteAt(want[1<<20:2<<20], 1<<20); err != nil {
		t.Fatal(err)
	}
	full := extents(t, sp)
	if full < 1<<20 {
		t.Errorf("%d bytes are mapped after 1 MiB was written", full)
	}
	from, to := 1<<20+64<<10, 2<<20-64<<10
	clear(want[from:to])
	if err := sp.Unmap(int64(from), int64(to-from)); err != nil {
		t.Fatal(err)
	}
	check(t, s, want)
	if left := extents(t, sp); left > full {
		t.Errorf("%d bytes are mapped after an unmap, %d before", left, full)
	}
	if err := sp.Unmap(0, Size); err != nil {
		t.Fatal(err)
	}
	check(t, s, make([]byte, Size))
	if err := sp.Unmap(Size, 0); err != nil {
		t.Errorf("Unmap of nothing at the end: %v", err)
	}
}

func zero(t *testing.T, s store.Store) {
	want := make([]byte, Size)
	fill(want, 9)
	if _, err := s.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ off, n int }{{1, 1}, {4096, 4096}, {100000, 300001}, {Size - 3, 3}, {0, 0}} {
		clear(want[c.off : c.off+c.n])
		if err := store.Zero(s, int64(c.off), int64(c.n)); err != nil {
			t.Fatalf("Zero(%d, %d): %v", c.off, c.n, err)
		}
	}
	check(t, s, want)
}

// concurrent has several goroutines write, unmap and read back ranges of their
// own that interleave, so that each 64 KiB belongs to several.
func concurrent(t *testing.T, s store.Store) {
	const workers, piece = 4, 4096
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			p, q := make([]byte, piece), make([]byte, piece)
			for i := range 300 {
				off := int64(r.IntN(Size/piece/workers)*workers+w) * piece
				fill(p, uint64(i*workers+w))
				if _, err := s.WriteAt(p, off); err != nil {
					errs <- err
					return
				}
				if i%3 == 0 {
					clear(p)
					if err := store.Zero(s, off, piece); err != nil {
						errs <- err
						return
					}
				}
				if _, err := s.ReadAt(q, off); err != nil {
					errs <- err
					return
				}
				if !bytes.Equal(p, q) {
					errs <- fmt.Errorf("worker %d, step %d: what was written at %d isn't there", w, i, off)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

func resize(t *testing.T, s store.Store) {
	r, ok := s.(store.Resizer)
	if !ok {
		t.Skip("not a store.Resizer")
	}
	p := bytes.Repeat([]byte{0xff}, 1000)
	if _, err := s.WriteAt(p, Size-int64(len(p))); err != nil {
		t.Fatal(err)
	}
	if err := r.Resize(2 * Size); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if s.Size() != 2*Size {
		t.Errorf("Size() = %d after Resize(%d)", s.Size(), 2*Size)
	}
	check := func(off int64, want byte) {
		t.Helper()
		if _, err := s.ReadAt(p, off); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, bytes.Repeat([]byte{want}, len(p))) {
			t.Errorf("the bytes at %d aren't %#x", off, want)
		}
	}
	check(Size, 0)
	check(2*Size-int64(len(p)), 0)
	for i := range p {
		p[i] = 0xee
	}
	if _, err := s.WriteAt(p, Size); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	// What is taken back doesn't come again.
	for _, size := range []int64{Size, 2 * Size} {
		if err := r.Resize(size); err != nil {
			t.Fatal(err)
		}
	}
	check(Size, 0)
	if err := r.Resize(Size); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadAt(p, Size); !errors.Is(err, store.ErrRange) {
		t.Errorf("ReadAt beyond the smaller size: %v; want ErrRange", err)
	}
	if err := r.Resize(-1); err == nil {
		t.Error("Resize(-1) gave no error")
	}
}

func closed(t *testing.T, s store.Store) {
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	p := make([]byte, 512)
	if _, err := s.ReadAt(p, 0); !errors.Is(err, store.ErrClosed) {
		t.Errorf("ReadAt after Close: %v; want ErrClosed", err)
	}
	if _, err := s.WriteAt(p, 0); !errors.Is(err, store.ErrClosed) {
		t.Errorf("WriteAt after Close: %v; want ErrClosed", err)
	}
	if err := s.Sync(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Sync after Close: %v; want ErrClosed", err)
	}
	if sp, ok := s.(store.Sparse); ok {
		if err := sp.Unmap(0, 512); !errors.Is(err, store.ErrClosed) {
			t.Errorf("Unmap after Close: %v; want ErrClosed", err)
		}
	}
	if err := s.Close(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("second Close: %v; want ErrClosed", err)
	}
}
