package tcmu

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lunlab/lun"
)

// fakeEvents notes which devices are answered for.
type fakeEvents struct {
	mu      sync.Mutex
	devices map[string]bool
	replies []bool
	closed  bool
	failure error
}

func (f *fakeEvents) add(d string, _ func(Reconfig) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[d] = true
}

func (f *fakeEvents) remove(d string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.devices, d)
}

func (f *fakeEvents) failed() error            { return f.failure }
func (f *fakeEvents) setReplies(on bool) error { f.replies = append(f.replies, on); return nil }
func (f *fakeEvents) close() error             { f.closed = true; return nil }

func fakeEngine(t *testing.T) (*Engine, *fakeSystem, *fakeEvents) {
	s, ev := newFakeSystem(t), &fakeEvents{devices: map[string]bool{}}
	e := newEngine(Options{Configfs: "/cfg", Sysfs: "/sys", Dev: "/dev"}, s)
	e.events = ev
	return e, s, ev
}

func idle() lun.Unit { return &testUnit{execute: func(*lun.Command) {}} }

type made struct {
	dev  *Device
	loop *Loop
	disk *Disk
}

func makeAll(ctx context.Context, e *Engine) (m made, err error) {
	if m.dev, err = e.Create(ctx, Config{HBA: 3, Name: "t0", Size: 1 << 20, MaxSectors: 128, RingMB: 1, MaxDataAreaMB: 8, CommandTimeout: -1}, idle()); err != nil {
		return m, err
	}
	if m.loop, err = e.CreateLoop(ctx, LoopConfig{WWN: "naa.5001405000000101", HWQueues: 2, CanQueue: 64, CmdPerLUN: 32}); err != nil {
		return m, err
	}
	m.disk, err = m.loop.Attach(ctx, m.dev, 5)
	return m, err
}

func (m made) removeAll(ctx context.Context) error {
	var errs []error
	if m.loop != nil {
		errs = append(errs, m.loop.Close(ctx))
	}
	if m.dev != nil {
		errs = append(errs, m.dev.Close(ctx))
	}
	return errors.Join(errs...)
}

func TestSteps(t *testing.T) {
	e, s, ev := fakeEngine(t)
	before := s.snapshot()
	m, err := makeAll(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	got := s.snapshot()
	for path, want := range map[string]string{
		fakeCore + "/user_3/t0/control":                                   "dev_config=lunlab/t0,dev_size=1048576,hw_block_size=512,hw_max_sectors=128,cmd_ring_size_mb=1,max_data_area_mb=8",
		fakeCore + "/user_3/t0/attrib/cmd_time_out":                       "0",
		fakeCore + "/user_3/t0/attrib/tmr_notification":                   "1",
		fakeCore + "/user_3/t0/attrib/pgr_support":                        "0",
		fakeCore + "/user_3/t0/enable":                                    "1",
		fakeLoop + "/naa.5001405000000101/tpgt_1/nexus":                   "naa.5001405800000101",
		fakeLoop + "/naa.5001405000000101/tpgt_1/lun/lun_5/t0":            "->" + fakeCore + "/user_3/t0",
		fakeParams + "can_queue":                                          "1024",
		"/sys/class/scsi_host/host0/can_queue":                            "64",
		"/sys/class/scsi_device/0:0:1:5/device/type":                      "0",
		fakeLoop + "/naa.5001405000000101/tpgt_1/lun/lun_5/alua_tg_pt_gp": "",
	} {
		if got[path] != want {
			t.Errorf("%s is %q, want %q", path, got[path], want)
		}
	}
	if d := m.disk; d.HCTL != "0:0:1:5" || d.Block != "/dev/sda" || d.Generic != "/dev/sg0" || d.LUN != 5 || d.Device() != m.dev {
		t.Errorf("disk: %+v", d)
	}
	if n, err := m.disk.QueueDepth(); n != 7 || err != nil {
		t.Errorf("queue depth %d, %v", n, err)
	}
	if l := m.loop.Limits(); l != (Limits{HWQueues: 2, CanQueue: 64, CmdPerLUN: 32}) {
		t.Errorf("limits %+v", l)
	}
	if !ev.devices["3/t0"] {
		t.Error("nobody answers for the device")
	}
	if err := m.dev.Close(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("close below a LUN: %v", err)
	}
	if err := e.Close(); err == nil {
		t.Error("the engine was closed with a device open")
	}
	if err := m.removeAll(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, s.snapshot()); diff != "" {
		t.Errorf("left behind: %s", diff)
	}
	if len(ev.devices) > 0 || len(s.inUse) > 0 {
		t.Errorf("still answered for: %v; open: %v", ev.devices, s.inUse)
	}
	if err := e.Close(); err != nil || !ev.closed || len(ev.replies) != 1 || ev.replies[0] {
		t.Errorf("close: %v, %+v", err, ev)
	}
}

// TestEveryStepMayFail has each call to the kernel fail in turn. Whatever it
// was, what was made before is taken back.
func TestEveryStepMayFail(t *testing.T) {
	// These tell of what may well be missing, or only tidy up.
	harmless := []string{"/scsi_generic", "/pgr_support", "/alua_support", "rmdir "}
	for n := 1; ; n++ {
		e, s, ev := fakeEngine(t)
		before := s.snapshot()
		s.failAt = n
		m, err := makeAll(t.Context(), e)
		s.failAt = 0
		if s.failed == "" {
			if n < 20 {
				t.Errorf("only %d steps", n)
			}
			if err != nil {
				t.Error(err)
			}
			if err := m.removeAll(t.Context()); err != nil {
				t.Error(err)
			}
			return
		}
		if err == nil {
			ok := strings.HasPrefix(s.failed, "open /dev/sd") || strings.HasPrefix(s.failed, "readdir /sys/class/scsi_device") // tried again
			for _, h := range harmless {
				ok = ok || strings.Contains(s.failed, h)
			}
			if !ok {
				t.Errorf("%s failed, and nobody noticed", s.failed)
			}
		} else if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), strings.Fields(s.failed)[1]) {
			t.Errorf("%s failed: the error is %v", s.failed, err)
		}
		if err := m.removeAll(t.Context()); err != nil {
			t.Errorf("%s failed, and then: %v", s.failed, err)
		}
		after := s.snapshot()
		for _, p := range []string{"nr_hw_queues", "can_queue", "cmd_per_lun"} {
			if strings.HasSuffix(s.failed, p) { // the way back may be what failed
				after[fakeParams+p] = before[fakeParams+p]
			}
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s failed; left behind: %s", s.failed, diff)
		}
		if len(ev.devices) > 0 || len(s.inUse) > 0 {
			t.Errorf("%s failed; still answered for: %v; open: %v", s.failed, ev.devices, s.inUse)
		}
	}
}

// TestCleanupSteps removes what another engine left, as if it had been killed,
// and only that.
func TestCleanupSteps(t *testing.T) {
	e, s, _ := fakeEngine(t)
	before := s.snapshot()
	dead, err := makeAll(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	e2 := newEngine(e.opts, s)
	if removed, err := e2.Cleanup(t.Context()); len(removed) > 0 || err != nil {
		t.Errorf("removed %v of a living process, %v", removed, err)
	}
	clear(s.inUse) // its process dies
	dead.dev.ring.stop()
	// One that was never enabled, one of another's, and an empty host.
	for _, f := range []func() error{
		func() error { return s.mkdir(fakeCore + "/user_3/half") },
		func() error { return s.write(fakeCore+"/user_3/half/control", "dev_config=lunlab/half") },
		func() error { return s.mkdir(fakeCore + "/user_3/theirs") },
		func() error { return s.write(fakeCore+"/user_3/theirs/control", "dev_config=qcow/theirs") },
		func() error { return s.mkdir(fakeLoop + "/naa.5001405000000999") },
		func() error { return s.mkdir(fakeLoop + "/naa.5001405000000998") },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := e2.Cleanup(t.Context(), "naa.5001405000000999", "naa.5001405000000000")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		fakeCore + "/user_3/half",
		fakeLoop + "/naa.5001405000000101/tpgt_1/lun/lun_5",
		fakeLoop + "/naa.5001405000000101",
		fakeCore + "/user_3/t0",
		fakeLoop + "/naa.5001405000000999",
	}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Errorf("removed: %s", diff)
	}
	for _, p := range []string{fakeCore + "/user_3/theirs", fakeLoop + "/naa.5001405000000998", fakeCore + "/user_3"} {
		if err := s.rmdir(p); err != nil {
			t.Error(err)
		}
	}
	if err := s.rmdir(fakeLoop); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, s.snapshot()); diff != "" {
		t.Errorf("left behind: %s", diff)
	}
}

func TestConfigMistakes(t *testing.T) {
	e, s, _ := fakeEngine(t)
	for _, tt := range []struct {
		c    Config
		want string
	}{
		{Config{Name: "a/b", Size: 512}, "device name"},
		{Config{Name: "", Size: 512}, "device name"},
		{Config{Name: "a", Size: 0}, "size 0"},
		{Config{Name: "a", Size: 1000}, "size 1000"},
		{Config{Name: "a", Size: 4096, BlockSize: 1000}, "block size"},
		{Config{Name: "a", Size: 4096, HBA: -1}, "HBA"},
		{Config{Name: "a", Size: 4096, RingMB: 9}, "ring"},
		{Config{Name: "a", Size: 4096, CommandTimeout: time.Millisecond}, "whole seconds"},
	} {
		if _, err := e.Create(t.Context(), tt.c, idle()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.c, err, tt.want)
		}
	}
	for _, tt := range []struct {
		c    LoopConfig
		want string
	}{
		{LoopConfig{WWN: "naa.5"}, "WWN"},
		{LoopConfig{WWN: "../../etc"}, "WWN"},
		{LoopConfig{WWN: "naa.5001405000000101", Initiator: "x"}, "initiator"},
		{LoopConfig{WWN: "naa.5001405000000101", CanQueue: 10241}, "can_queue"},
		{LoopConfig{WWN: "naa.5001405000000101", CmdPerLUN: -1}, "cmd_per_lun"},
		{LoopConfig{WWN: "naa.5001405000000101", HWQueues: 5000}, "hardware queues"},
	} {
		if _, err := e.CreateLoop(t.Context(), tt.c); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.c, err, tt.want)
		}
	}
	if s.calls > 0 {
		t.Errorf("%d calls to the kernel", s.calls)
	}
}

// TestContextEnds gives up on a kernel that doesn't answer.
func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	err := bounded(ctx, func() error { <-release; return nil })
	close(release)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want a deadline", err)
	}
}

// slowSystem holds some calls until they are released.
type slowSystem struct {
	*fakeSystem
	path    string // rmdir of it, and every openUIO if it is empty, is held
	release chan struct{}
}

func (s *slowSystem) openUIO(path string, size int) (*uio, error) {
	if s.path == "" {
		<-s.release
	}
	return s.fakeSystem.openUIO(path, size)
}

func (s *slowSystem) rmdir(path string) error {
	if s.path == path {
		<-s.release
	}
	return s.fakeSystem.rmdir(path)
}

// TestOpenedLate opens a ring when it isn't waited for any more.
func TestOpenedLate(t *testing.T) {
	e, s, _ := fakeEngine(t)
	slow := &slowSystem{fakeSystem: s, release: make(chan struct{})}
	e.sys = slow
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := e.Create(ctx, Config{Name: "t0", Size: 512}, idle()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want a deadline", err)
	}
	close(slow.release)
	closed := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.closed) == 1 && s.closed[0] == 1
	}
	for end := time.Now().Add(10 * time.Second); !closed(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the ring was opened late and stays open")
		}
	}
}

// TestCleanupEnds removes something when that isn't waited for any more.
func TestCleanupEnds(t *testing.T) {
	e, s, _ := fakeEngine(t)
	dead, err := makeAll(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	clear(s.inUse) // its process dies
	dead.dev.ring.stop()
	host := fakeLoop + "/naa.5001405000000101"
	slow := &slowSystem{fakeSystem: s, path: host + "/tpgt_1", release: make(chan struct{})}
	e2 := newEngine(e.opts, slow)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	removed, err := e2.Cleanup(ctx)
	close(slow.release)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removed %v, error %v; want a deadline", removed, err)
	}
}

func TestClosedByMany(t *testing.T) {
	e, s, _ := fakeEngine(t)
	d, err := e.Create(t.Context(), Config{Name: "t0", Size: 512}, idle())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := d.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(s.closed) != 1 || s.closed[0] != 1 {
		t.Errorf("mappings closed %v times, want one, once", s.closed)
	}
	// Another one of that name is not the closed one's to remove.
	d2, err := e.Create(t.Context(), Config{Name: "t0", Size: 512}, idle())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(t.Context()); err != nil || !s.isDir(d2.Path()) {
		t.Errorf("closed again: %v; the other is there: %v", err, s.isDir(d2.Path()))
	}
	if err := d2.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOtherLimits has another process change tcm_loop's parameters while a host
// is made.
func TestOtherLimits(t *testing.T) {
	for _, p := range []string{"nr_hw_queues", "can_queue", "cmd_per_lun"} {
		e, s, _ := fakeEngine(t)
		e.sys = &meddlingSystem{s, p}
		before := s.snapshot()
		_, err := e.CreateLoop(t.Context(), LoopConfig{WWN: "naa.5001405000000101", HWQueues: 2, CanQueue: 64, CmdPerLUN: 32})
		if err == nil || !strings.Contains(err.Error(), "the host has "+p+" 77 and not") {
			t.Errorf("%s: error %v", p, err)
		}
		if diff := cmp.Diff(before, s.snapshot()); diff != "" {
			t.Errorf("%s: left behind: %s", p, diff)
		}
	}
}

// meddlingSystem makes hosts with one parameter changed.
type meddlingSystem struct {
	*fakeSystem
	param string
}

func (s *meddlingSystem) mkdir(path string) error {
	if filepath.Dir(path) == fakeLoop {
		if err := s.write(fakeParams+s.param, "77"); err != nil {
			return err
		}
	}
	return s.fakeSystem.mkdir(path)
}

// TestCleanupFails lets go of what it can't remove.
func TestCleanupFails(t *testing.T) {
	e, s, _ := fakeEngine(t)
	dead, err := makeAll(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	clear(s.inUse) // its process dies
	dead.dev.ring.stop()
	ev := &fakeEvents{devices: map[string]bool{}}
	e2 := newEngine(e.opts, &refusingSystem{s, fakeLoop + "/naa.5001405000000101/tpgt_1"})
	e2.events = ev
	if removed, err := e2.Cleanup(t.Context()); !errors.Is(err, syscall.EPERM) || len(removed) != 1 {
		t.Errorf("removed %v, error %v; want the LUN and EPERM", removed, err)
	}
	if err := e2.Close(); err != nil || len(ev.devices) > 0 || len(s.inUse) > 0 {
		t.Errorf("close: %v; still answered for: %v; open: %v", err, ev.devices, s.inUse)
	}
}

// refusingSystem doesn't remove path.
type refusingSystem struct {
	*fakeSystem
	path string
}

func (s *refusingSystem) rmdir(path string) error {
	if path == s.path {
		return pathErr("rmdir", path, syscall.EPERM)
	}
	return s.fakeSystem.rmdir(path)
}

// TestEventsFail makes no device when nobody hears the kernel's events.
func TestEventsFail(t *testing.T) {
	e, s, ev := fakeEngine(t)
	ev.failure = syscall.ENOMEM
	if _, err := e.Create(t.Context(), Config{Name: "t0", Size: 512}, idle()); !errors.Is(err, syscall.ENOMEM) || s.calls > 0 {
		t.Errorf("error %v, %d calls to the kernel; want ENOMEM and none", err, s.calls)
	}
	ev.failure = nil
	d, err := e.Create(t.Context(), Config{Name: "t0", Size: 512}, idle())
	if err != nil {
		t.Fatal(err)
	}
	// A step that fails then tells of it too.
	ev.failure, s.failAt = syscall.ENOMEM, s.calls+1
	if err := d.Close(t.Context()); !errors.Is(err, syscall.EIO) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("error %v, want EIO and ENOMEM", err)
	}
	ev.failure = nil
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDropped has a device go on after its ring was dropped: the kernel is told to end
// what was in it with BUSY, and nothing fails.
func TestDropped(t *testing.T) {
	e, s, _ := fakeEngine(t)
	d, err := e.Create(t.Context(), Config{Name: "t0", Size: 512}, idle())
	if err != nil {
		t.Fatal(err)
	}
	ringOf := func() *ring {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.ring
	}
	reset := func() string {
		v, _ := s.read(d.Path() + "/action/reset_ring")
		return v
	}
	first := ringOf()
	first.fail(errDropped)
	for deadline := time.Now().Add(time.Minute); ringOf() == first; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no new ring is set up")
		}
	}
	if v := reset(); v != "1" {
		t.Errorf("reset_ring is %q, want 1", v)
	}
	select {
	case <-d.Done():
		t.Errorf("the device ended: %v", d.Err())
	default:
	}
	// One that is dropped while the device goes doesn't keep it.
	ringOf().fail(errDropped)
	if err := d.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
