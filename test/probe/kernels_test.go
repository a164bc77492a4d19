package probe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/probe"
)

// buildTests builds this package's tests as a static program for a guest.
func buildTests(dir string) (string, error) {
	bin := filepath.Join(dir, "probe.test")
	cmd := exec.Command("go", "test", "-c", "-o", bin, "lunlab/test/probe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
}

const ofRules = "(DetectRules|Predictions|AHCI|Virtio|Loop|Stuck)$"

// TestKernels runs the TestGuest tests in guests whose kernels' rules are
// known, by how they were built.
func TestKernels(t *testing.T) {
	if os.Getenv("LUNLAB_GUEST_RULES") != "" {
		t.Skip("in a guest")
	}
	if testing.Short() {
		t.Skip("boots guests")
	}
	dir := t.TempDir()
	guestTests := sync.OnceValues(func() (string, error) { return buildTests(dir) })
	for _, k := range []struct {
		name, rules string
		perCPU      bool
		run         string // what doesn't depend on the rules is run on two kernels
	}{
		{"stock", "6.12", false, "."},
		{"base", "6.12", false, ofRules},
		{"v2a", "v2", false, ofRules},
		{"v2b", "v3", false, "."},
		{"no3", "v3-scsi", false, ofRules},
		{"nbt", "v4", false, ofRules},
		{"s2", "6.12", true, ofRules},
	} {
		t.Run(k.name, func(t *testing.T) {
			cfg := kernel.Config{
				Carry:    []string{"scsi_debug", "target_core_mod", "target_core_file", "tcm_loop"},
				QEMUArgs: append(virtioArgs(), strings.Fields("-drive if=none,id=ata,driver=null-co,size=64M,read-zeroes=on -device ide-hd,drive=ata")...),
			}
			var img kernel.Image
			if k.name == "stock" {
				img = kerneltest.Stock(t)
				cfg.Load = []string{"sd_mod", "ahci", "virtio_scsi"}
			} else {
				img = kerneltest.Named(t, k.name)
			}
			bin, err := guestTests()
			if err != nil {
				t.Fatal(err)
			}
			cfg.Files = map[string]string{"/bin/probe.test": bin}
			vm := kerneltest.Boot(t, img, cfg)

			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			env := []string{"LUNLAB_GUEST_RULES=" + k.rules}
			if k.perCPU {
				env = append(env, "LUNLAB_GUEST_PER_CPU=1")
			}
			var out lines
			code, err := vm.Run(ctx, []string{"/bin/probe.test", "-test.v", "-test.run=^TestGuest" + k.run}, env, &out, &out)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if code != 0 || !strings.Contains(string(out), "--- PASS: TestGuestDetectRules") {
				t.Errorf("exit status %d\n%s", code, out)
			} else {
				t.Logf("%s", out)
			}
			report := kerneltest.Run(t, vm, "/bin/lunlab", "probe", "--json", "--for", "100ms")
			var r probe.Report
			if err := json.Unmarshal([]byte(report), &r); err != nil || r.Rules == nil || len(r.Rules.Candidates) != 1 || r.Rules.Candidates[0].Name != k.rules {
				t.Errorf("lunlab probe --json: %v: %s", err, report)
			}
		})
	}
}

type lines []byte

func (l *lines) Write(b []byte) (int, error) {
	*l = append(*l, b...)
	return len(b), nil
}
