package tcmu_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
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
	vm := boot(t)
	out, err := inside(t, vm, "-test.v", "-test.run", "^TestIn"+os.Getenv("LUNLAB_TCMU_RUN"))
	t.Log("in the guest:\n" + out)
	report(t, out)
	if err != nil {
		t.Fatal(err)
	}
	if c := vm.Complaints(); len(c) > 0 {
		t.Errorf("the kernel complained: %v", c)
	}
}

// boot boots a kernel with this program, built without cgo, as its init.
func boot(t testing.TB) *kernel.VM {
	t.Helper()
	var img kernel.Image
	if name := os.Getenv("LUNLAB_TCMU_KERNEL"); name != "" {
		img = kerneltest.Named(t, name)
	} else {
		img = kerneltest.Stock(t)
	}
	bin := filepath.Join(t.TempDir(), "guest.test")
	build := exec.Command("go", "test", "-c", "-o", bin, "lunlab/target/tcmu")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return kerneltest.Boot(t, img, kernel.Config{
		Init: bin,
		// tcmu.Prepare loads the others.
		Load: []string{"sd_mod", "sg"}, Carry: []string{"target_core_user", "tcm_loop"},
		Files: map[string]string{"/opt/lunlab": kerneltest.Lunlab(t)},
	}, "fio", "sg_reset", "sg_raw")
}

// inside runs this program in the guest and returns what it printed.
func inside(t testing.TB, vm *kernel.VM, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	argv := append([]string{"/init", "-test.timeout", "7m"}, args...)
	code, err := vm.Run(ctx, argv, []string{inGuest + "=1", "LUNLAB_TCMU_CYCLES=" + os.Getenv("LUNLAB_TCMU_CYCLES")}, &out, &out)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit status %d in the guest", code)
	}
	return out.String(), err
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
func guest(t testing.TB) *tcmu.Engine {
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
func leftovers(t testing.TB) {
	t.Helper()
	for _, pat := range []string{"core/user_*/*", "core/user_*", "loopback/*.*", "loopback"} {
		if m, _ := filepath.Glob("/sys/kernel/config/target/" + pat); len(m) > 0 {
			t.Errorf("left in configfs: %v", m)
		}
	}
}

const testWWN = "naa.5001405000000101"

func run(t testing.TB, argv ...string) string {
	t.Helper()
	out, err := tryRun(t, argv...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return out
}

func tryRun(t testing.TB, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// bench is a device, a host and a disk.
type bench struct {
	dev  *tcmu.Device
	loop *tcmu.Loop
	disk *tcmu.Disk
}

// attach attaches unit as the only LUN of a host. It is detached by the test's
// end, if it isn't before.
func attach(t testing.TB, e *tcmu.Engine, unit lun.Unit, cfg tcmu.Config, loop tcmu.LoopConfig) *bench {
	t.Helper()
	b := &bench{}
	var err error
	cfg.Name, cfg.Size, loop.WWN = "t0", 64<<20, testWWN
	if b.dev, err = e.Create(t.Context(), cfg, unit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && b.dev != nil {
			b.dev.Offline()
		}
		b.detach(t)
	})
	if b.loop, err = e.CreateLoop(t.Context(), loop); err != nil {
		t.Fatal(err)
	}
	if b.disk, err = b.loop.Attach(t.Context(), b.dev, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) detach(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	if b.loop != nil {
		if err := b.loop.Close(ctx); err != nil {
			t.Error(err)
			return
		}
		b.loop = nil
	}
	if b.dev != nil {
		if err := b.dev.Close(ctx); err != nil {
			t.Error(err)
			return
		}
		b.dev = nil
	}
}

// waitInFlight waits until n commands are in flight.
func waitInFlight(t *testing.T, d *tcmu.Device, n int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); d.Stats().InFlight != n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 20 s not %d commands in flight: %+v", n, d.Stats())
		}
	}
}

// fio runs fio on a disk with what all jobs here have in common.
func fio(disk string, more ...string) []string {
	return append([]string{"fio", "--name=x", "--filename=" + disk, "--allow_file_create=0", "--direct=1", "--bs=4k", "--ioengine=io_uring", "--size=32m"}, more...)
}
