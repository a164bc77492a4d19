package file_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"lunlab/lun/store"
	"lunlab/lun/store/file"
	"lunlab/lun/store/storetest"
)

func open(t *testing.T, path string, o file.Options) *file.Store {
	t.Helper()
	s, err := file.Open(path, o)
	if o.Direct && errors.Is(err, syscall.EINVAL) {
		t.Skip("the file system of the temporary folder has no O_DIRECT")
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, filepath.Join(t.TempDir(), "disk"), file.Options{Size: storetest.Size})
	}, storetest.Options{})
}

func TestStoreDirect(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, filepath.Join(t.TempDir(), "disk"), file.Options{Size: storetest.Size, Direct: true})
	}, storetest.Options{})
}

func TestIsSparse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	s := open(t, path, file.Options{Size: 1 << 30})
	defer s.Close()
	p := bytes.Repeat([]byte{1}, 1<<20)
	if _, err := s.WriteAt(p, 512<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	full := allocated(t, path)
	if full < 1<<20 || full > 2<<20 {
		t.Fatalf("%d bytes are allocated for 1 MiB", full)
	}
	if mapped, n, err := s.Extent(0, 1<<30); mapped || n != 512<<20 || err != nil {
		t.Errorf("Extent(0) = %v, %d, %v; want a hole of 512 MiB", mapped, n, err)
	}
	if err := s.Unmap(512<<20, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if left := allocated(t, path); left >= full {
		t.Errorf("%d bytes are allocated after the unmap, %d before", left, full)
	}
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestPersists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	s := open(t, path, file.Options{Size: 1 << 20})
	if _, err := s.WriteAt([]byte("hello"), 12345); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, file.Options{})
	defer s.Close()
	p := make([]byte, 5)
	if _, err := s.ReadAt(p, 12345); err != nil || string(p) != "hello" {
		t.Errorf("read %q, %v", p, err)
	}
}

func TestSecondOpener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	s := open(t, path, file.Options{Size: 1 << 20})
	for _, o := range []file.Options{{}, {ReadOnly: true}} {
		if _, err := file.Open(path, o); !errors.Is(err, store.ErrLocked) {
			t.Errorf("second Open(%+v): %v; want ErrLocked", o, err)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%q doesn't name the file", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	a := open(t, path, file.Options{ReadOnly: true})
	defer a.Close()
	b := open(t, path, file.Options{ReadOnly: true})
	defer b.Close()
	if _, err := file.Open(path, file.Options{}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("Open for writing beside readers: %v; want ErrLocked", err)
	}
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, file.Options{ReadOnly: true})
	defer s.Close()
	if _, err := s.WriteAt([]byte{1}, 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("WriteAt: %v; want EROFS", err)
	}
	if err := s.Unmap(0, 4096); !errors.Is(err, syscall.EROFS) {
		t.Errorf("Unmap: %v; want EROFS", err)
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	empty, small := filepath.Join(dir, "empty"), filepath.Join(dir, "small")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(small, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		o    file.Options
		want string
	}{
		{filepath.Join(dir, "none"), file.Options{}, "no such file"},
		{empty, file.Options{}, "empty"},
		{small, file.Options{Size: 8192}, "4096 bytes where 8192"},
		{small, file.Options{Size: -1}, "negative"},
		{dir, file.Options{ReadOnly: true}, "neither a regular file nor a block device"},
		{"/dev/null", file.Options{}, "neither a regular file nor a block device"},
	} {
		_, err := file.Open(c.path, c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Open(%s, %+v) = %v; want an error with %q", c.path, c.o, err, c.want)
		}
	}
}

// TestCut reads from a file that was made shorter behind the store's back.
func TestCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	s := open(t, path, file.Options{Size: 1 << 20})
	defer s.Close()
	if err := os.Truncate(path, 1000); err != nil {
		t.Fatal(err)
	}
	if n, err := s.ReadAt(make([]byte, 512), 512); n != 488 || !errors.Is(err, syscall.EIO) {
		t.Errorf("ReadAt = %d, %v; want 488, EIO", n, err)
	}
}

// TestSyncFails has an fdatasync fail once, as Linux tells of lost writes: that
// isn't made good by the next one.
func TestSyncFails(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "disk"), file.Options{Size: 1 << 20})
	defer s.Close()
	calls := 0
	s.SetFdatasync(func(int) error {
		if calls++; calls == 2 {
			return syscall.EIO
		}
		return nil
	})
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.Sync(); !errors.Is(err, syscall.EIO) {
			t.Errorf("Sync = %v; want EIO", err)
		}
	}
	if calls != 2 {
		t.Errorf("fdatasync was called %d times, want 2", calls)
	}
}

// TestDirectMixed has neighbours in one page written past the page cache and
// through it at the same time. Neither undoes the other.
func TestDirectMixed(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "disk"), file.Options{Size: 1 << 20, Direct: true})
	defer s.Close()
	var wg sync.WaitGroup
	for w := range int64(2) {
		wg.Go(func() {
			// 8 bytes, and 512 that are aligned where the file system wants no more.
			off, p := w*512, make([]byte, 8+w*504)
			for i := range byte(60) {
				for at := range p {
					p[at] = i
				}
				q := make([]byte, len(p))
				if _, err := s.WriteAt(p, off); err != nil {
					t.Error(err)
					return
				}
				if _, err := s.ReadAt(q, off); err != nil || !bytes.Equal(p, q) {
					t.Errorf("at %d: what was written isn't there (%v)", off, err)
					return
				}
			}
		})
	}
	wg.Wait()
}
