// Package kerneltest boots guests for tests.
package kerneltest

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/need"
)

// Lunlab builds the lunlab command, static, once for all tests of a package,
// and returns where it is.
func Lunlab(t testing.TB) string {
	t.Helper()
	bin, err := lunlab()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

var lunlab = sync.OnceValues(func() (string, error) {
	// One place for all, that tests of other packages may be running from.
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w", err)
	}
	// Each checkout has its own.
	bin := filepath.Join(cache, "lunlab", "test", fmt.Sprintf("lunlab-%08x", crc32.ChecksumIEEE(root)))
	fresh := fmt.Sprintf("%s.%d", bin, os.Getpid())
	cmd := exec.Command("go", "build", "-o", fresh, "lunlab/cmd/lunlab")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build lunlab: %w\n%s", err, out)
	}
	return bin, os.Rename(fresh, bin)
})

// Stock returns the distribution's kernel, downloaded at the first use.
func Stock(t testing.TB) kernel.Image {
	t.Helper()
	dir, err := kernel.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	img, err := kernel.Distribution(t.Context(), dir, t.Logf)
	if err != nil {
		need.Missing(t, "no kernel to boot: %v", err)
	}
	return img
}

// Names returns the names of the kernels in the folder that LUNLAB_KERNELS names.
func Names(t testing.TB) []string {
	t.Helper()
	dir := kernels(t)
	images, _ := filepath.Glob(filepath.Join(dir, "*", "bzImage"))
	if len(images) == 0 {
		need.Missing(t, "no NAME/bzImage in %s", dir)
	}
	var names []string
	for _, i := range images {
		names = append(names, filepath.Base(filepath.Dir(i)))
	}
	return names
}

func kernels(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("LUNLAB_KERNELS")
	if dir == "" {
		need.Missing(t, "LUNLAB_KERNELS names no folder of kernels")
	}
	return dir
}

// Named returns kernels of the folder that LUNLAB_KERNELS names: NAME/bzImage
// and NAME/modules. The test is skipped without the variable.
func Named(t testing.TB, name string) kernel.Image {
	t.Helper()
	dir := kernels(t)
	img := kernel.Image{Kernel: filepath.Join(dir, name, "bzImage"), Modules: filepath.Join(dir, name, "modules")}
	if _, err := os.Stat(img.Kernel); err != nil {
		need.Missing(t, "%v", err)
	}
	return img
}

// UML returns the kernel of User-Mode Linux in the folder that LUNLAB_KERNELS
// names: um/linux.
func UML(t testing.TB) kernel.Image {
	t.Helper()
	img := kernel.Image{Kernel: filepath.Join(kernels(t), "um", "linux")}
	if _, err := os.Stat(img.Kernel); err != nil {
		need.Missing(t, "%v", err)
	}
	return img
}

// Boot boots a guest with lunlab as its init and ends it with the test. What
// cfg leaves open is filled in; programs are host programs, such as "fio", that
// go along with their libraries.
func Boot(t testing.TB, img kernel.Image, cfg kernel.Config, programs ...string) *kernel.VM {
	t.Helper()
	if uml, err := kernel.IsUML(img.Kernel); err != nil {
		t.Fatal(err)
	} else if !uml {
		need.Program(t, "qemu-system-x86_64", "qemu-system-x86")
	}
	cfg.Kernel, cfg.Modules, cfg.Logf = img.Kernel, img.Modules, t.Logf
	if cfg.Init == "" {
		cfg.Init = Lunlab(t)
	}
	files := maps.Clone(cfg.Files)
	if files == nil {
		files = map[string]string{}
	}
	for _, p := range programs {
		prog, err := kernel.Program(need.Program(t, p, packages[p]))
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(files, prog)
	}
	cfg.Files = files
	vm, err := kernel.Boot(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, l := range vm.Console(30) {
				t.Log("console: " + l)
			}
		}
		vm.Close()
	})
	return vm
}

// packages has what Debian calls the packages of programs that tests take along.
var packages = map[string]string{
	"fio": "fio", "ls": "coreutils", "cp": "coreutils", "cat": "coreutils", "sleep": "coreutils", "dmesg": "util-linux", "lsmod": "kmod",
	"sg_reset": "sg3-utils", "sg_inq": "sg3-utils", "sg_raw": "sg3-utils", "sg_dd": "sg3-utils",
}

// Run runs a command in the guest, fails the test unless it exits with 0, and
// returns what it printed.
func Run(t testing.TB, vm *kernel.VM, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out, errs buffer
	code, err := vm.Run(ctx, argv, nil, &out, &errs)
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	if code != 0 {
		t.Fatalf("%q: exit status %d\n%s%s", argv, code, out, errs)
	}
	return string(out)
}

// Guests returns the process ids of the guests, QEMUs and all processes of UMLs, that
// have mark on their kernel's command line.
func Guests(mark string) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		isGuest := bytes.Contains(b, []byte("\x00-kernel\x00")) || bytes.Contains(b, []byte("\x00ssl0=fd:"))
		if err != nil || !bytes.Contains(b, []byte(mark)) || !isGuest {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// Mark makes a word for a kernel's command line that no other guest has.
func Mark() string { return fmt.Sprintf("lunlab.mark=%d.%d", os.Getpid(), time.Now().UnixNano()) }

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}
