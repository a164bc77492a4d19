package tcmu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/tcmu"
)

// TestInVerify writes to a disk and reads back, with a unit that runs in the
// ring's reader and with one that doesn't, whose commands end in any order.
func TestInVerify(t *testing.T) {
	e := guest(t)
	for _, blocking := range []bool{false, true} {
		s, err := mem.New(64 << 20)
		if err != nil {
			t.Fatal(err)
		}
		disk, err := lun.NewDisk(s, lun.DiskOptions{Thin: true})
		if err != nil {
			t.Fatal(err)
		}
		unit := lun.Unit(disk)
		if blocking {
			unit = target.NewMeter(disk)
		}
		b := attach(t, e, unit, tcmu.Config{}, tcmu.LoopConfig{CanQueue: 64, CmdPerLUN: 32, HWQueues: 2})
		want := tcmu.Limits{HWQueues: 2, CanQueue: 64, CmdPerLUN: 32}
		if got := b.loop.Limits(); got != want {
			t.Errorf("limits %+v, want %+v", got, want)
		}
		if n, err := b.disk.QueueDepth(); n != 32 || err != nil {
			t.Errorf("queue depth %d, %v; want 32", n, err)
		}
		run(t, fio(b.disk.Block, "--rw=randwrite", "--bsrange=512-256k", "--iodepth=64", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1")...)
		st := b.dev.Stats()
		if st.Commands < 500 || st.InFlight != 0 {
			t.Errorf("stats: %+v", st)
		}
		if blocking && st.MaxInFlight < 8 {
			t.Errorf("%d commands at once at most, of a depth of 32", st.MaxInFlight)
		}
		b.detach(t)
		leftovers(t)
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestInSense sees sense data, a short read and its residual arrive.
func TestInSense(t *testing.T) {
	e := guest(t)
	b := attach(t, e, newRAM(1<<20), tcmu.Config{}, tcmu.LoopConfig{})
	out, _ := tryRun(t, "sg_raw", "-r", "512", b.disk.Generic, "c0", "00", "00", "00", "00", "00")
	for _, want := range []string{"Check Condition", "Recovered", "Info fld=0x1234", "30 31 32 33 34 35 36 37  38 39", "Received 10 bytes"} {
		if !strings.Contains(out, want) {
			t.Errorf("sg_raw doesn't say %q:\n%s", want, out)
		}
	}
}

// TestInReset resets a LUN that holds commands, and then lets one time out, so
// that the kernel aborts it.
func TestInReset(t *testing.T) {
	e := guest(t)
	u := newRAM(64 << 20)
	m := target.NewMeter(u)
	tmrs := make(chan tcmu.TMRType, 16)
	b := attach(t, e, m, tcmu.Config{OnTMR: func(x tcmu.TMRType) { tmrs <- x }}, tcmu.LoopConfig{CanQueue: 16, CmdPerLUN: 16})

	m.Hold()
	done := make(chan string, 1)
	go func() {
		out, err := exec.Command("fio", fio(b.disk.Block, "--rw=randread", "--iodepth=16", "--number_ios=16")[1:]...).CombinedOutput()
		done <- fmt.Sprint(string(out), err)
	}()
	waitInFlight(t, b.dev, 16)
	run(t, "sg_reset", "-d", b.disk.Generic)
	if got := <-tmrs; got != tcmu.TMRLUNReset {
		t.Errorf("task management request %d, want %d", got, tcmu.TMRLUNReset)
	}
	if st := b.dev.Stats(); st.Aborted != 16 {
		t.Errorf("stats after the reset: %+v, want 16 aborted", st)
	}
	u.mu.Lock()
	if len(u.events) != 1 || u.events[0] != lun.LogicalUnitReset {
		t.Errorf("the unit was told of %v, want a LUN reset", u.events)
	}
	u.mu.Unlock()
	m.Release()
	// The initiator sends them again.
	if out := <-done; !strings.HasSuffix(out, "<nil>") {
		t.Errorf("fio after a LUN reset: %s", out)
	}

	if err := os.WriteFile("/sys/block/"+filepath.Base(b.disk.Block)+"/device/timeout", []byte("2"), 0); err != nil {
		t.Fatal(err)
	}
	before := b.dev.Stats()
	m.Hold()
	go func() {
		out, err := exec.Command("fio", fio(b.disk.Block, "--rw=randread", "--iodepth=1", "--number_ios=1")[1:]...).CombinedOutput()
		done <- fmt.Sprint(string(out), err)
	}()
	if got := <-tmrs; got != tcmu.TMRAbortTask {
		t.Errorf("task management request %d, want %d", got, tcmu.TMRAbortTask)
	}
	m.Release()
	if out := <-done; !strings.HasSuffix(out, "<nil>") {
		t.Errorf("fio after an abort: %s", out)
	}
	if st := b.dev.Stats(); st.Aborted <= before.Aborted {
		t.Errorf("stats after the abort: %+v, before %+v", st, before)
	}
}

// TestInReconfigure changes a device through its attributes.
func TestInReconfigure(t *testing.T) {
	e := guest(t)
	var got []tcmu.Reconfig
	var answer error
	b := attach(t, e, newRAM(64<<20), tcmu.Config{Reconfigure: func(r tcmu.Reconfig) error {
		got = append(got, r)
		return answer
	}}, tcmu.LoopConfig{})
	set := func(attr, v string) error {
		return os.WriteFile(b.dev.Path()+"/attrib/"+attr, []byte(v), 0)
	}
	if err := set("dev_size", "1048576"); err != nil {
		t.Error(err)
	}
	if err := set("emulate_write_cache", "1"); err != nil {
		t.Error(err)
	}
	if err := set("dev_config", "lunlab/other"); err != nil {
		t.Error(err)
	}
	answer = syscall.ENOSPC
	if err := set("dev_size", "2097152"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a refused change: %v, want %v", err, answer)
	}
	answer = errors.New("no")
	if err := set("dev_size", "2097152"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a refused change: %v, want EINVAL", err)
	}
	if len(got) != 5 || got[0].Size == nil || *got[0].Size != 1<<20 || got[1].WriteCache == nil || !*got[1].WriteCache ||
		got[2].Config == nil || *got[2].Config != "lunlab/other" || got[3].Size == nil || *got[3].Size != 2<<20 {
		t.Errorf("changes: %+v", got)
	}
	b.detach(t)

	b = attach(t, e, newRAM(64<<20), tcmu.Config{}, tcmu.LoopConfig{})
	if err := set("dev_size", "1048576"); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("a change that nobody takes: %v, want EOPNOTSUPP", err)
	}
}

// TestInThousands holds 8,192 commands in one ring: two LUNs of a device, as
// the kernel lets a LUN have no more than 4,096.
func TestInThousands(t *testing.T) {
	e := guest(t)
	m := target.NewMeter(newRAM(64 << 20))
	b := attach(t, e, m, tcmu.Config{CommandTimeout: -1}, tcmu.LoopConfig{CanQueue: 8192, CmdPerLUN: 4096})
	second, err := b.loop.Attach(t.Context(), b.dev, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{b.disk.Block, second.Block} {
		// Time enough to send all, and no scheduler with a smaller queue.
		for attr, v := range map[string]string{"device/timeout": "120", "queue/scheduler": "none"} {
			if err := os.WriteFile(filepath.Join("/sys/block", filepath.Base(d), attr), []byte(v), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.Hold()
	var jobs sync.WaitGroup
	for _, d := range []string{b.disk.Block, second.Block} {
		jobs.Go(func() {
			if out, err := exec.Command("fio", fio(d, "--rw=read", "--iodepth=4096", "--number_ios=4096", "--size=16m")[1:]...).CombinedOutput(); err != nil {
				t.Errorf("fio: %v\n%s", err, out)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	n, err := target.Settle(ctx, m.InFlight, 8192, 200*time.Millisecond, 60*time.Second)
	if n != 8192 {
		t.Errorf("%d commands are held, %v; want 8192", n, err)
	}
	if st := b.dev.Stats(); st.MaxInFlight != 8192 {
		t.Errorf("stats: %+v", st)
	}
	m.Release()
	jobs.Wait()
	if st := b.dev.Stats(); st.InFlight != 0 || st.Doorbells > st.Commands {
		t.Errorf("stats: %+v", st)
	}
}

// TestInMalformed puts an entry into the ring that isn't one. The device must
// end with an error, and its commands fail soon instead of timing out.
func TestInMalformed(t *testing.T) {
	e := guest(t)
	b := attach(t, e, newRAM(64<<20), tcmu.Config{}, tcmu.LoopConfig{})
	run(t, fio(b.disk.Block, "--rw=read", "--size=1m")...)
	ring := ownRing(t)
	head := (*uint32)(unsafe.Pointer(&ring[12]))
	off := *(*uint32)(unsafe.Pointer(&ring[4]))
	// A command without room for one.
	*(*uint32)(unsafe.Pointer(&ring[off+*head])) = 8 | 1
	atomic.AddUint32(head, 8)
	start := time.Now()
	if out, err := tryRun(t, fio(b.disk.Block, "--rw=read", "--size=4k")...); err == nil {
		t.Errorf("fio reads from a device that broke:\n%s", out)
	}
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("fio failed after %v", d)
	}
	select {
	case <-b.dev.Done():
	default:
		t.Fatal("the device goes on")
	}
	if err := b.dev.Err(); !errors.Is(err, tcmu.ErrRing) || !strings.Contains(err.Error(), "t0") {
		t.Errorf("error %v", err)
	}
}

// ownRing finds the ring that this process has mapped.
func ownRing(t *testing.T) []byte {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(maps), "\n") {
		var from, to uintptr
		if strings.Contains(line, "/dev/uio") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
			return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&from))), 8<<20)
		}
	}
	t.Fatalf("no ring is mapped:\n%s", maps)
	return nil
}

// TestInOffline detaches a disk that holds commands.
func TestInOffline(t *testing.T) {
	e := guest(t)
	m := target.NewMeter(newRAM(64 << 20))
	b := attach(t, e, m, tcmu.Config{}, tcmu.LoopConfig{})
	m.Hold()
	done := make(chan error, 1)
	go func() {
		done <- exec.Command("fio", fio(b.disk.Block, "--rw=randread", "--iodepth=16", "--number_ios=16")[1:]...).Run()
	}()
	waitInFlight(t, b.dev, 16)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := b.loop.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("detach with commands held: %v", err)
	}
	b.dev.Offline()
	b.detach(t)
	if err := <-done; err == nil {
		t.Error("fio read from a disk that is offline")
	}
	leftovers(t)
}

// TestInManyLUNs has 24 LUNs on one host, and takes some off again.
func TestInManyLUNs(t *testing.T) {
	e := guest(t)
	loop, err := e.CreateLoop(t.Context(), tcmu.LoopConfig{WWN: testWWN, CanQueue: 128, CmdPerLUN: 128})
	if err != nil {
		t.Fatal(err)
	}
	var devs []*tcmu.Device
	seen := map[string]bool{}
	for i := range 24 {
		d, err := e.Create(t.Context(), tcmu.Config{Name: fmt.Sprintf("t%d", i), Size: 1 << 20, MaxDataAreaMB: 8, RingMB: 1}, newRAM(1<<20))
		if err != nil {
			t.Fatal(err)
		}
		devs = append(devs, d)
		disk, err := loop.Attach(t.Context(), d, i)
		if err != nil {
			t.Fatal(err)
		}
		seen[disk.Block] = true
		if i%4 == 3 {
			if err := disk.Detach(t.Context()); err != nil {
				t.Error(err)
			}
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
			devs = devs[:len(devs)-1]
			delete(seen, disk.Block)
		}
	}
	if _, err := loop.Attach(t.Context(), devs[0], 0); !errors.Is(err, tcmu.ErrExists) {
		t.Errorf("a LUN twice: %v", err)
	}
	if _, err := e.Create(t.Context(), tcmu.Config{Name: "t0", Size: 1 << 20}, newRAM(1<<20)); !errors.Is(err, tcmu.ErrExists) {
		t.Errorf("a device twice: %v", err)
	}
	if err := devs[0].Close(t.Context()); err == nil {
		t.Error("a device was removed below its LUN")
	}
	if len(seen) != 18 {
		t.Errorf("%d block devices, want 18", len(seen))
	}
	job := []string{"fio", "--allow_file_create=0", "--direct=1", "--bs=4k", "--ioengine=io_uring", "--size=1m", "--rw=randrw", "--iodepth=4", "--number_ios=20"}
	for d := range seen {
		job = append(job, "--name="+filepath.Base(d), "--filename="+d)
	}
	run(t, job...)
	if err := loop.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, d := range devs {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestInCycles attaches and detaches many times: no file descriptor, goroutine
// or memory stays behind, and the parameters of tcm_loop are what they were.
func TestInCycles(t *testing.T) {
	e := guest(t)
	u := newRAM(1 << 20)
	params := func() string {
		b, _ := os.ReadFile("/sys/module/tcm_loop/parameters/can_queue")
		return string(b)
	}
	before := params()
	ctx := t.Context()
	cycle := func() {
		// Not by attach, which keeps a little for the test's end.
		dev, err := e.Create(ctx, tcmu.Config{Name: "t0", Size: 1 << 20, MaxDataAreaMB: 8}, u)
		if err != nil {
			t.Fatal(err)
		}
		loop, err := e.CreateLoop(ctx, tcmu.LoopConfig{WWN: testWWN, CanQueue: 4, CmdPerLUN: 4})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := loop.Attach(ctx, dev, 0); err != nil {
			t.Fatal(err)
		}
		if err := loop.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := dev.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (fds, goroutines, heap int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return len(entries), runtime.NumGoroutine(), int(m.HeapAlloc)
	}
	for range 10 {
		cycle()
	}
	f0, g0, h0 := count()
	free0 := available(t)
	start := time.Now()
	n := 25
	if s := os.Getenv("LUNLAB_TCMU_CYCLES"); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		cycle()
	}
	d := time.Since(start)
	f1, g1, h1 := count()
	free1 := available(t)
	t.Logf("%d cycles of %v; heap %d to %d KiB; the system has %d and then %d KiB to give", n, d/time.Duration(n), h0>>10, h1>>10, free0, free1)
	if f1 != f0 || g1 > g0 {
		t.Errorf("%d file descriptors and %d goroutines became %d and %d", f0, g0, f1, g1)
	}
	if h1 > h0+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", h0, h1)
	}
	// A ring is 8 MiB: one that leaked each time would be 1.5 GiB.
	if free1 < free0-64<<10 {
		t.Errorf("the system has %d KiB to give, and had %d", free1, free0)
	}
	if after := params(); after != before {
		t.Errorf("can_queue is %q for the next host, and was %q", after, before)
	}
}

func available(t *testing.T) (kib int) {
	t.Helper()
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return kib
		}
	}
	t.Fatal("no MemAvailable")
	return 0
}
