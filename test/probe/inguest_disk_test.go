package probe_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/test/probe"
)

// disk is a disk of scsi_debug.
type disk struct {
	t    *testing.T
	addr string
	dev  string // "/dev/sda"
}

const debugDriver = "/sys/bus/pseudo/drivers/scsi_debug"

func modprobe(args ...string) error {
	if out, err := exec.Command("/sbin/modprobe", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe %q: %w: %s", args, err, out)
	}
	return nil
}

// debugDisk loads scsi_debug and waits for its disk. The module goes with the
// test.
func debugDisk(t *testing.T, params ...string) *disk {
	t.Helper()
	if err := modprobe(append([]string{"scsi_debug", "dev_size_mb=8", "max_luns=1", "num_tgts=1"}, params...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.DeleteModule("scsi_debug", 0); err != nil {
			t.Errorf("rmmod scsi_debug: %v", err)
		}
	})
	return waitDisk(t, debugDriver+"/adapter*/host*/target*/*:*/block/*")
}

// waitDisk waits for the disk that the pattern of sysfs finds, until its device
// file is there and nobody uses it.
func waitDisk(t *testing.T, pattern string) *disk {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		found, _ := filepath.Glob(pattern)
		if len(found) == 0 {
			continue
		}
		d := &disk{t, filepath.Base(filepath.Dir(filepath.Dir(found[0]))), "/dev/" + filepath.Base(found[0])}
		// The scan for partitions holds the disk until it is through.
		if f, err := os.OpenFile(d.dev, os.O_RDONLY|unix.O_EXCL, 0); err == nil {
			f.Close()
			d.idle()
			return d
		}
	}
	t.Fatalf("no disk at %s", pattern)
	return nil
}

func (d *disk) attr(name string) string {
	return filepath.Join("/sys/class/scsi_device", d.addr, "device", name)
}

func (d *disk) get(name string) int64 {
	d.t.Helper()
	b, err := os.ReadFile(d.attr(name))
	if err != nil {
		d.t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 0, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

func set(path string, v any) error { return os.WriteFile(path, []byte(fmt.Sprint(v)), 0) }

func (d *disk) set(path string, v any) {
	d.t.Helper()
	if err := set(path, v); err != nil {
		d.t.Fatal(err)
	}
}

// idle waits until the device has no command, for a while: a command that
// failed is started again somewhat later.
func (d *disk) idle() {
	d.t.Helper()
	quiet := 0
	for end := time.Now().Add(20 * time.Second); quiet < 5; time.Sleep(10 * time.Millisecond) {
		if quiet++; d.get("device_busy") != 0 {
			quiet = 0
		}
		if time.Now().After(end) {
			d.t.Fatalf("%s is busy with %d commands", d.addr, d.get("device_busy"))
		}
	}
}

// load reads from the disk with so many readers until it is stopped. Errors
// count; reading goes on.
type load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ok     atomic.Int64
	failed atomic.Int64
}

func (d *disk) load(readers int) *load {
	d.t.Helper()
	fd, err := unix.Open(d.dev, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		d.t.Fatalf("%s: %v", d.dev, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{cancel: cancel}
	mem, err := unix.Mmap(-1, 0, 4096*readers, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		d.t.Fatal(err)
	}
	for i := range readers {
		l.wg.Go(func() {
			for at := int64(i); ctx.Err() == nil; at += int64(readers) {
				if n, err := unix.Pread(fd, mem[4096*i:][:4096], at%1024*4096); err != nil || n != 4096 {
					l.failed.Add(1)
				} else {
					l.ok.Add(1)
				}
			}
		})
	}
	d.t.Cleanup(func() { // after stop
		unix.Munmap(mem)
		unix.Close(fd)
	})
	return l
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}

// layout is loaded once, since that takes a good part of a second under TCG.
var layout = sync.OnceValues(probe.LoadLayout)

func open(t *testing.T, o probe.Options) *probe.Probe {
	t.Helper()
	var err error
	if o.Layout, err = layout(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p, err := probe.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("probe open after %v", time.Since(begin))
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (d *disk) seen(p *probe.Probe) probe.Device {
	d.t.Helper()
	devices, err := p.Snapshot()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, dev := range devices {
		if dev.Address == d.addr && dev.Present {
			return dev
		}
	}
	d.t.Fatalf("no %s in %+v", d.addr, devices)
	return probe.Device{}
}

// seenWith waits until so many commands were in flight in a phase, but not long.
func (d *disk) seenWith(p *probe.Probe, phase, most int) probe.Device {
	d.t.Helper()
	end := time.Now().Add(5 * time.Second)
	for {
		devices, err := p.Snapshot()
		if err != nil {
			d.t.Fatal(err)
		}
		for _, dev := range devices {
			if dev.Address == d.addr && dev.Present && (dev.Phases[phase].MaxInFlight >= most || time.Now().After(end)) {
				return dev
			}
		}
		if time.Now().After(end) {
			d.t.Fatalf("no %s in %+v", d.addr, devices)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// counters are the kernel's own, to hold the probe's against.
func (d *disk) counters() (requests, dones int64) {
	return d.get("iorequest_cnt"), d.get("iodone_cnt")
}

// checkExact holds an idle device's counts against each other, and against what
// the kernel has counted since before the probe was opened.
func (d *disk) checkExact(p *probe.Probe, requests, dones int64) probe.Device {
	d.t.Helper()
	d.idle()
	dev := d.seen(p)
	nowRequests, nowDones := d.counters()
	lost, err := p.Lost()
	if err != nil {
		d.t.Fatal(err)
	}
	if lost.Any() {
		d.t.Errorf("lost: %s", lost)
	}
	if dev.InFlight != 0 || dev.Earlier != 0 || dev.Stale != 0 {
		d.t.Errorf("at rest: %d in flight, %d from before, %d stale, want 0 of each", dev.InFlight, dev.Earlier, dev.Stale)
	}
	if ends := dev.Dones + dev.Rejected + dev.Ended; dev.Starts != ends {
		d.t.Errorf("%d starts, %d ends (%d done, %d rejected, %d by the error handler)", dev.Starts, ends, dev.Dones, dev.Rejected, dev.Ended)
	}
	if got, want := int64(dev.Starts-dev.Rejected), nowRequests-requests; got != want {
		d.t.Errorf("%d starts that were not rejected, and iorequest_cnt went up by %d", got, want)
	}
	if got, want := int64(dev.Dones+dev.Ended), nowDones-dones; got != want {
		d.t.Errorf("%d ends, and iodone_cnt went up by %d", got, want)
	}
	var queued uint64
	for _, n := range dev.Queues {
		queued += n
	}
	if queued != dev.Starts {
		d.t.Errorf("%d starts, %v by queue", dev.Starts, dev.Queues)
	}
	return dev
}
