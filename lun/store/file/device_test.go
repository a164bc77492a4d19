package file_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"lunlab/lun/store"
	"lunlab/lun/store/file"
	"lunlab/lun/store/storetest"
)

// openLoop opens a block device over a file of so many bytes, which goes when it is
// closed. It returns the paths of both.
func openLoop(t *testing.T, size int64, o file.Options) (s *file.Store, device, image string) {
	t.Helper()
	if _, err := exec.LookPath("losetup"); err != nil || os.Geteuid() != 0 {
		t.Skip("a loop device needs losetup and root")
	}
	image = filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "-f", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("no loop device can be had here: %v: %s", err, out)
	}
	device = strings.TrimSpace(string(out))
	// As long as it is open, that only has it go with its last user.
	defer exec.Command("losetup", "-d", device).Run()
	return open(t, device, o), device, image
}

func TestDevice(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, _, _ := openLoop(t, storetest.Size, file.Options{})
		return s
	}, storetest.Options{})
}

func TestDeviceDirect(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, _, _ := openLoop(t, storetest.Size, file.Options{Direct: true, Size: storetest.Size})
		return s
	}, storetest.Options{})
}

// TestDeviceGrows has a device become larger, which its store takes up when it is
// asked to.
func TestDeviceGrows(t *testing.T) {
	s, device, image := openLoop(t, 1<<20, file.Options{})
	defer s.Close()
	if _, err := file.Open(device, file.Options{}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second Open: %v; want ErrLocked", err)
	}
	if err := s.Resize(2 << 20); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Resize to what the device hasn't: %v; want ErrUnsupported", err)
	}
	if err := os.Truncate(image, 2<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("losetup", "-c", device).CombinedOutput(); err != nil {
		t.Fatalf("losetup -c: %v: %s", err, out)
	}
	if err := s.Resize(2 << 20); err != nil || s.Size() != 2<<20 {
		t.Errorf("Resize: %v, %d bytes", err, s.Size())
	}
	if _, err := s.WriteAt([]byte{1}, 2<<20-1); err != nil {
		t.Error(err)
	}
}
