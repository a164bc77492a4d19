package tcmu_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lunlab/target/tcmu"
	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
)

// TestMain makes this test program a guest's init as well: TestGuest boots a
// kernel with it and runs the tests that are named In… there.
func TestMain(m *testing.M) {
	kernel.Main()
	os.Exit(m.Run())
}

const inGuest = "LUNLAB_TCMU_GUEST"

// TestGuest runs the tests that need a kernel with TCMU, in one.
func TestGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel")
	}
	img := kerneltest.Stock(t)
	bin := filepath.Join(t.TempDir(), "guest.test")
	build := exec.Command("go", "test", "-c", "-o", bin, "lunlab/target/tcmu")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	vm := kerneltest.Boot(t, img, kernel.Config{
		Init: bin,
		Load: []string{"target_core_user", "tcm_loop", "sd_mod", "sg"},
	}, "fio", "sg_reset", "sg_raw")
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	code, err := vm.Run(ctx, []string{"/init", "-test.v", "-test.run", "^TestIn", "-test.timeout", "4m"}, []string{inGuest + "=1"}, &out, &out)
	t.Log("in the guest:\n" + out.String())
	report(t, out.String())
	if err != nil || code != 0 {
		t.Fatalf("in the guest: exit status %d, %v\n%s", code, err, out.String())
	}
	if c := vm.Complaints(); len(c) > 0 {
		t.Errorf("the kernel complained: %v", c)
	}
}

var resultRE = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (TestIn\S*) `)

// report makes subtests of what ran in the guest.
func report(t *testing.T, out string) {
	results := resultRE.FindAllStringSubmatch(out, -1)
	if len(results) == 0 {
		t.Errorf("no test ran in the guest:\n%s", out)
	}
	for _, r := range results {
		t.Run(strings.TrimPrefix(r[2], "TestIn"), func(t *testing.T) {
			if r[1] != "PASS" {
				t.Errorf("%s in the guest", r[1])
			}
		})
	}
}

// guest opens the engine in a guest; elsewhere the test is skipped.
func guest(t *testing.T) *tcmu.Engine {
	t.Helper()
	if os.Getenv(inGuest) == "" {
		t.Skip("runs in TestGuest's guest")
	}
	if err := tcmu.Prepare(t.Context(), tcmu.Options{}); err != nil {
		t.Fatal(err)
	}
	e, err := tcmu.Open(tcmu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		leftovers(t)
	})
	return e
}

// leftovers checks that nothing of ours is in configfs.
func leftovers(t *testing.T) {
	t.Helper()
	for _, pat := range []string{"core/user_*/*", "core/user_*", "loopback/*.*", "loopback"} {
		if m, _ := filepath.Glob("/sys/kernel/config/target/" + pat); len(m) > 0 {
			t.Errorf("left in configfs: %v", m)
		}
	}
}

const testWWN = "naa.5001405000000101"

func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

func TestInAttach(t *testing.T) {
	e := guest(t)
	ctx := t.Context()
	u := newRAM(64 << 20)
	dev, err := e.Create(ctx, tcmu.Config{Name: "t0", Size: uint64(len(u.data))}, u)
	if err != nil {
		t.Fatal(err)
	}
	loop, err := e.CreateLoop(ctx, tcmu.LoopConfig{WWN: testWWN, CanQueue: 64, CmdPerLUN: 32, HWQueues: 2})
	if err != nil {
		t.Fatal(err)
	}
	disk, err := loop.Attach(ctx, dev, 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %+v", *disk, loop.Limits())
	for _, d := range []string{"1", "32", "128"} {
		out := run(t, "fio", "--name=x", "--filename="+disk.Block, "--direct=1", "--rw=randread", "--bs=4k", "--ioengine=io_uring", "--iodepth="+d, "--runtime=4", "--time_based", "--size=60m", "--output-format=terse", "--terse-version=3")
		f := strings.Split(out, ";")
		t.Logf("depth %s: %s IOPS", d, f[7])
	}
	t.Log(run(t, "fio", "--name=v", "--filename="+disk.Block, "--direct=1", "--rw=randwrite", "--bs=4k", "--ioengine=io_uring", "--iodepth=64", "--size=16m", "--verify=crc32c", "--do_verify=1"))
	t.Logf("%+v", dev.Stats())
	if err := loop.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := dev.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
