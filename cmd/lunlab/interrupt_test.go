package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
)

// A guest ends with the run that booted it, whether that is interrupted or
// killed, and nothing stays in the temporary folder after an interrupt.
func TestNothingKeepsRunning(t *testing.T) {
	need.Program(t, "qemu-system-x86_64", "qemu-system-x86")
	img := kerneltest.Stock(t)
	for _, sig := range []os.Signal{os.Interrupt, os.Kill} {
		t.Run(sig.String(), func(t *testing.T) {
			tmp := t.TempDir()
			mark := kerneltest.Mark()
			console := filepath.Join(tmp, "log")
			cmd := exec.Command(kerneltest.Lunlab(t), "ktest", "--kernel", img.Kernel, "--accel", "tcg", "--scenario", "limits/tcm_loop",
				"--append", mark, "--console", console)
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cmd.Process.Kill() }) // if it isn't over by then
			guest := func() bool { return len(kerneltest.Guests(mark)) > 0 }
			said := func() []byte {
				logs, _ := filepath.Glob(console + "*")
				if len(logs) == 0 {
					return nil
				}
				b, _ := os.ReadFile(logs[0])
				return b
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the console:\n%s", said())
				}
			})
			wait(t, "a disk in the guest", func() bool { return bytes.Contains(said(), []byte("sd 0:0:1:0:")) })
			if !guest() {
				t.Fatal("the guest is not found by its mark")
			}
			cmd.Process.Signal(sig)
			err := cmd.Wait()
			wait(t, "the guest to end", func() bool { return !guest() })
			if sig == os.Kill {
				return
			}
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(stderr.String(), "lunlab: interrupt signal received") {
				t.Errorf("%v, %q; want exit status 2 and a word about the interrupt", err, stderr.String())
			}
			if left, _ := filepath.Glob(filepath.Join(tmp, "lunlab-*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
