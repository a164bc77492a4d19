package kernel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
)

// A QEMU that fails under KVM, as on a machine whose KVM can't run guests: the
// guest runs under TCG, and it is said why.
func TestKVMThatStartsNoGuest(t *testing.T) {
	qemu := need.Program(t, "qemu-system-x86_64", "qemu-system-x86")
	dir := t.TempDir()
	kvm := filepath.Join(dir, "kvm")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in '-accel kvm'*) echo 'failed to initialize kvm' >&2; exit 1;; esac\nexec %s \"$@\"\n", qemu)
	if err := errors.Join(os.WriteFile(kvm, nil, 0o600), os.WriteFile(filepath.Join(dir, "qemu"), []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	defer kernel.SetKVMDevice(kvm)()
	img := kerneltest.Stock(t)
	var said strings.Builder
	vm, err := kernel.Boot(t.Context(), kernel.Config{
		Kernel: img.Kernel, Modules: img.Modules, Init: kerneltest.Lunlab(t), QEMU: filepath.Join(dir, "qemu"),
		Logf: func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Close()
	if vm.Accel != "tcg" || !strings.Contains(said.String(), "no guest starts under it: QEMU ended before the guest began") {
		t.Errorf("accelerator %s, said %q", vm.Accel, said.String())
	}
}

func TestRun(t *testing.T) {
	dir := t.TempDir()
	crash := filepath.Join(dir, "crash")
	if err := os.WriteFile(crash, []byte("c"), 0o600); err != nil {
		t.Fatal(err)
	}
	img := kerneltest.Stock(t)
	vm := kerneltest.Boot(t, img, kernel.Config{
		Files: map[string]string{"/crash": crash}, Load: []string{"sd_mod"}, Carry: []string{"scsi_debug"}, Silence: 30 * time.Second,
	}, "ls", "cp", "cat", "sleep")

	if out := kerneltest.Run(t, vm, "cat", "/sys/devices/system/cpu/online"); out != "0-1\n" {
		t.Errorf("CPUs online: %q", out)
	}
	if out := kerneltest.Run(t, vm, "ls", "/init"); out != "/init\n" {
		t.Errorf("ls /init printed %q", out)
	}
	var out, errs bytes.Buffer
	code, err := vm.Run(t.Context(), []string{"ls", "/nothere"}, []string{"LC_ALL=C"}, &out, &errs)
	if err != nil || code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), "No such file") {
		t.Errorf("ls /nothere: exit status %d, %v, %q, %q", code, err, out.String(), errs.String())
	}
	if _, err := vm.Run(t.Context(), []string{"nothere"}, nil, nil, nil); err == nil || !strings.Contains(err.Error(), "nothere") {
		t.Errorf("a command that isn't there: %v", err)
	}

	// The guest's modprobe loads what a module depends on first, with
	// parameters, by name or alias, and says what it doesn't have.
	kerneltest.Run(t, vm, "modprobe", "scsi_debug", "dev_size_mb=8")
	if got := kerneltest.Run(t, vm, "ls", "/sys/bus/pseudo/drivers/scsi_debug"); !strings.Contains(got, "adapter0") {
		t.Errorf("scsi_debug was loaded: %q", got)
	}
	kerneltest.Run(t, vm, "modprobe", "-r", "scsi_debug")
	errs.Reset()
	if code, err := vm.Run(t.Context(), []string{"modprobe", "nothere"}, nil, nil, &errs); err != nil || code != 1 || !strings.Contains(errs.String(), "nothere was not brought along") {
		t.Errorf("modprobe nothere: exit status %d, %v, %q", code, err, errs.String())
	}

	// A panic ends the guest, and is named.
	_, err = vm.Run(t.Context(), []string{"cp", "/crash", "/proc/sysrq-trigger"}, nil, nil, nil)
	var lost *kernel.GuestError
	if !errors.As(err, &lost) || len(lost.Complaints) == 0 || len(lost.Console) == 0 {
		t.Fatalf("a panic: %v, want a GuestError", err)
	}
	if last := lost.Complaints[len(lost.Complaints)-1]; last.Kind != "panic" || !strings.Contains(last.Line, "sysrq triggered crash") {
		t.Errorf("named as %+v", last)
	}
	if _, err := vm.Run(t.Context(), []string{"ls"}, nil, nil, nil); !errors.As(err, &lost) {
		t.Errorf("in a guest that is gone: %v", err)
	}
}

// A guest that says nothing for too long, or runs past its context, is ended.
func TestRunInTime(t *testing.T) {
	img := kerneltest.Stock(t)
	for name, c := range map[string]struct {
		silence, timeout time.Duration
		want             string
	}{
		"silence": {2 * time.Second, time.Minute, "said nothing for 2s"},
		"context": {time.Minute, 2 * time.Second, "did not end sleep in time"},
	} {
		t.Run(name, func(t *testing.T) {
			vm := kerneltest.Boot(t, img, kernel.Config{Silence: c.silence}, "sleep")
			ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
			defer cancel()
			_, err := vm.Run(ctx, []string{"sleep", "100"}, nil, nil, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
