package file_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/file"
)

// disk is a disk over a store, and an initiator that has heard of its power on.
type disk struct {
	*lun.Disk
	n lun.Nexus
}

func diskOver(t *testing.T, s *file.Store, o lun.DiskOptions) *disk {
	t.Helper()
	d, err := lun.NewDisk(s, o)
	if err != nil {
		t.Fatal(err)
	}
	h := &disk{Disk: d}
	h.do(make([]byte, 6), nil, nil)
	t.Cleanup(func() { d.Close() })
	return h
}

func (h *disk) do(cdb, out, in []byte) *lun.Command {
	c := &lun.Command{Nexus: &h.n, CDB: cdb, DataOut: [][]byte{out}, DataIn: [][]byte{in}}
	h.Execute(c)
	return c
}

// wantSense wants a command to have failed so.
func wantSense(t *testing.T, c *lun.Command, key lun.SenseKey, code uint16) {
	t.Helper()
	if c.Status != lun.CheckCondition || lun.SenseKey(c.Sense[2]&0xf) != key || uint16(c.Sense[12])<<8|uint16(c.Sense[13]) != code {
		t.Errorf("%x: status %#x, sense %x; want %#x and %#04x", c.CDB, c.Status, c.Sense, key, code)
	}
}

// TestNoSpace writes to a sparse file until its file system is full: SPACE
// ALLOCATION FAILED WRITE PROTECT, until something else is unmapped.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system can't be mounted, which needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	h := diskOver(t, open(t, filepath.Join(dir, "disk"), file.Options{Size: 4 << 20}), lun.DiskOptions{Thin: true})
	write := func(block uint32) *lun.Command { // of 64 KiB
		return h.do([]byte{0x2a, 0, byte(block >> 24), byte(block >> 16), byte(block >> 8), byte(block), 0, 0, 128, 0}, make([]byte, 64<<10), nil)
	}
	full := uint32(0)
	for ; full < 8192; full += 128 {
		if c := write(full); c.Status != lun.Good {
			wantSense(t, c, lun.DataProtect, lun.ASCSpaceAllocationFailed)
			break
		}
	}
	if full == 0 || full > 2048 {
		t.Fatalf("%d blocks fit into 1 MiB", full)
	}
	unmap := []byte{0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0}
	if c := h.do(unmap, []byte{0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0}, nil); c.Status != lun.Good {
		t.Fatalf("UNMAP: status %#x, sense %x", c.Status, c.Sense)
	}
	if c := write(full); c.Status != lun.Good {
		t.Errorf("WRITE after UNMAP: status %#x, sense %x", c.Status, c.Sense)
	}
}

// TestMediumErrors has the file's I/O fail with EIO.
func TestMediumErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	s := open(t, path, file.Options{Size: 1 << 20})
	h := diskOver(t, s, lun.DiskOptions{})
	if err := os.Truncate(path, 64<<10); err != nil { // behind its back
		t.Fatal(err)
	}
	wantSense(t, h.do([]byte{0x28, 0, 0, 0, 2, 0, 0, 0, 1, 0}, nil, make([]byte, 512)), lun.MediumError, lun.ASCUnrecoveredReadError)
	s.SetFdatasync(func(int) error { return syscall.EIO })
	wantSense(t, h.do([]byte{0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil, nil), lun.MediumError, lun.ASCWriteError)
	wantSense(t, h.do([]byte{0x2a, 8, 0, 0, 0, 0, 0, 0, 1, 0}, make([]byte, 512), nil), lun.MediumError, lun.ASCWriteError) // FUA
}

// TestTooLarge writes past what the process may (RLIMIT_FSIZE, EFBIG), which isn't
// the medium's fault.
func TestTooLarge(t *testing.T) {
	if path := os.Getenv("LUNLAB_FILE_TOO_LARGE"); path != "" {
		h := diskOver(t, open(t, path, file.Options{}), lun.DiskOptions{})
		limit := syscall.Rlimit{Cur: 64 << 10, Max: 64 << 10}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
		if c := h.do([]byte{0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0}, make([]byte, 512), nil); c.Status != lun.Good {
			t.Errorf("status %#x, sense %x", c.Status, c.Sense)
		}
		wantSense(t, h.do([]byte{0x2a, 0, 0, 0, 2, 0, 0, 0, 1, 0}, make([]byte, 512), nil), lun.HardwareError, lun.ASCInternalTargetFailure)
		return
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := open(t, path, file.Options{Size: 1 << 20}).Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestTooLarge$")
	cmd.Env = append(os.Environ(), "LUNLAB_FILE_TOO_LARGE="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
