package kernel_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
)

func TestUML(t *testing.T) {
	big := filepath.Join(t.TempDir(), "big")
	all := make([]byte, 1<<20)
	for i := range all {
		all[i] = byte(i ^ i>>8)
	}
	if err := os.WriteFile(big, all, 0o600); err != nil {
		t.Fatal(err)
	}
	img := kerneltest.UML(t)
	mark := kerneltest.Mark()
	vm := kerneltest.Boot(t, img, kernel.Config{
		SMP: 4, Memory: 256, Append: mark, Silence: time.Minute, Files: map[string]string{"/big": big},
	}, "ls", "cat", "sleep")
	if vm.Accel != kernel.UML || vm.Guest.Release == "" {
		t.Errorf("accelerator %s, guest %+v", vm.Accel, vm.Guest)
	}
	// All bytes come through the serial line as they are.
	if out := kerneltest.Run(t, vm, "cat", "/big"); out != string(all) {
		t.Errorf("a file of %d bytes came as %d, or differs", len(all), len(out))
	}
	var out, errs bytes.Buffer
	code, err := vm.Run(t.Context(), []string{"ls", "/nothere"}, []string{"LC_ALL=C"}, &out, &errs)
	if err != nil || code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), "No such file") {
		t.Errorf("ls /nothere: exit status %d, %v, %q, %q", code, err, out.String(), errs.String())
	}
	if out := kerneltest.Run(t, vm, "cat", "/proc/cpuinfo"); !strings.Contains(out, "User Mode Linux") {
		t.Errorf("cpuinfo: %q", out)
	}
	if n := len(kerneltest.Guests(mark)); n < 2 {
		t.Errorf("%d processes of the guest, want its own and those of its programs", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := vm.Run(ctx, []string{"sleep", "1000"}, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "did not end sleep in time") {
		t.Errorf("a command that doesn't end: %v", err)
	}
	if left := kerneltest.Guests(mark); len(left) > 0 {
		t.Errorf("processes %v are left of the guest", left)
	}
}

// TestUMLLost has guests that panic, or that don't come up.
func TestUMLLost(t *testing.T) {
	dir := t.TempDir()
	crash := filepath.Join(dir, "crash")
	if err := os.WriteFile(crash, []byte("c"), 0o600); err != nil {
		t.Fatal(err)
	}
	img := kerneltest.UML(t)
	mark := kerneltest.Mark()
	vm := kerneltest.Boot(t, img, kernel.Config{Memory: 256, Append: mark, Files: map[string]string{"/crash": crash}}, "cp")
	_, err := vm.Run(t.Context(), []string{"cp", "/crash", "/proc/sysrq-trigger"}, nil, nil, nil)
	var lost *kernel.GuestError
	if !errors.As(err, &lost) || len(lost.Complaints) == 0 || len(lost.Console) == 0 {
		t.Fatalf("a panic: %v, want a GuestError", err)
	}
	if last := lost.Complaints[len(lost.Complaints)-1]; last.Kind != "panic" || !strings.Contains(last.Line, "sysrq triggered crash") {
		t.Errorf("named as %+v", last)
	}
	_, err = kernel.Boot(t.Context(), kernel.Config{Kernel: img.Kernel, Init: kerneltest.Lunlab(t), Memory: 256, Append: "rdinit=/nothere " + mark})
	if !errors.As(err, &lost) || len(lost.Complaints) == 0 {
		t.Errorf("a guest without an init: %v", err)
	}
	tail, err := kernel.Program(need.Program(t, "tail", "coreutils"))
	if err != nil {
		t.Fatal(err)
	}
	script := ""
	for p := range tail {
		if filepath.Base(p) == "tail" {
			script = "#!" + p + " -f\n"
		}
	}
	quiet := filepath.Join(dir, "quiet")
	if err := os.WriteFile(quiet, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = kernel.Boot(t.Context(), kernel.Config{
		Kernel: img.Kernel, Init: quiet, Memory: 256, Files: tail, BootTimeout: 5 * time.Second, Append: mark,
	})
	if !errors.As(err, &lost) || !strings.Contains(lost.What, "not ready after 5s") {
		t.Errorf("a guest that says nothing: %v", err)
	}
	if left := kerneltest.Guests(mark); len(left) > 0 {
		t.Errorf("processes %v are left of the guests", left)
	}
}

// TestNotUML has other files not taken for UML's.
func TestNotUML(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("MZ"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{self, text} {
		if uml, err := kernel.IsUML(file); uml || err != nil {
			t.Errorf("%s: %v, %v", file, uml, err)
		}
		if _, err := kernel.Boot(t.Context(), kernel.Config{Kernel: file, Accel: kernel.UML}); err == nil || !strings.Contains(err.Error(), "ARCH=um") {
			t.Errorf("%s: %v", file, err)
		}
	}
	if _, err := kernel.IsUML("/nothere"); err == nil {
		t.Error("no file: no error")
	}
}

// TestUMLVirtualTime has an hour pass in a guest at once, and the same in each run.
func TestUMLVirtualTime(t *testing.T) {
	img := kerneltest.UML(t)
	var first string
	for range 3 {
		vm := kerneltest.Boot(t, img, kernel.Config{Memory: 256, Clock: kernel.NewClock(), Silence: 2 * time.Minute}, "sleep", "cat", "dmesg")
		start := time.Now()
		kerneltest.Run(t, vm, "sleep", "3600")
		out := kerneltest.Run(t, vm, "cat", "/proc/uptime") + kerneltest.Run(t, vm, "dmesg", "-r")
		t.Logf("%v for an hour, %.60q", time.Since(start), out)
		if first == "" {
			first = out
		} else if out != first {
			t.Errorf("another run differs: %s", diff(first, out))
		}
		vm.Close()
	}
}

func diff(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	var d []string
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			d = append(d, x[i], y[i])
		}
	}
	return strings.Join(d, "\n")
}

// TestUMLNoSharedMemory has a machine without room for a guest's memory in its own.
func TestUMLNoSharedMemory(t *testing.T) {
	img := kerneltest.UML(t)
	defer kernel.SetSharedMemory("/nothere")()
	vm := kerneltest.Boot(t, img, kernel.Config{Memory: 256}, "cat")
	if out := kerneltest.Run(t, vm, "cat", "/proc/version"); !strings.HasPrefix(out, "Linux") {
		t.Errorf("/proc/version: %q", out)
	}
	if log := strings.Join(vm.Console(60), "\n"); !strings.Contains(log, "lunlab-vm-") {
		t.Errorf("the guest's memory isn't in its folder:\n%s", log)
	}
}
