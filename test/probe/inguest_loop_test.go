package probe_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/queue"
	"lunlab/test/probe"
)

const targets = "/sys/kernel/config/target"

// loopDisk makes a disk of tcm_loop over a file, whose host has the limits.
func loopDisk(t *testing.T, l queue.Limits) *disk {
	t.Helper()
	set := func(path string, v any) {
		t.Helper()
		if err := set(path, v); err != nil {
			t.Fatal(err)
		}
	}
	const params = "/sys/module/tcm_loop/parameters/"
	set(params+"nr_hw_queues", l.HWQueues)
	set(params+"can_queue", l.CanQueue)
	set(params+"cmd_per_lun", l.CmdPerLUN)
	// What was made is removed in the opposite order, as the kernel wants it.
	mkdir := func(dir string) string {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(dir) })
		return dir
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	mkdir(targets + "/core/fileio_0")
	store := mkdir(targets + "/core/fileio_0/disk")
	set(store+"/control", fmt.Sprintf("fd_dev_name=%s,fd_dev_size=%d", file, 4<<20))
	set(store+"/enable", 1)
	if _, err := os.Stat(targets + "/loopback"); err != nil {
		mkdir(targets + "/loopback")
	}
	wwn := mkdir(targets + "/loopback/naa.6001405000000001")
	tpg := mkdir(wwn + "/tpgt_1")
	set(tpg+"/nexus", "naa.6001405000000002")
	lun := mkdir(tpg + "/lun/lun_0")
	if err := os.Symlink(store, lun+"/disk"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(lun + "/disk") })
	return waitDisk(t, "/sys/devices/*/tcm_loop_adapter_*/host*/target*/*:*/block/*")
}

// TestGuestLoop holds what the kernel makes of tcm_loop's parameters, which has
// no device_configure, against the predictions.
func TestGuestLoop(t *testing.T) {
	guest(t)
	for _, m := range []string{"target_core_mod", "target_core_file", "tcm_loop"} {
		if err := modprobe(m); err != nil && m == "tcm_loop" {
			t.Fatal(err)
		}
	}
	// A kernel whose configfs is a module has it only now.
	if err := unix.Mount("configfs", filepath.Dir(targets), "configfs", 0, ""); err != nil && err != unix.EBUSY {
		t.Fatal(err)
	}
	p := open(t, probe.Options{})
	for _, c := range []struct{ queues, canQueue, cmdPerLUN, write int }{
		{1, 64, 64, 8},
		{1, 64, 32, 64},
		{1, 64, 128, 65},
		{2, 64, 64, 8},
		{4, 64, 64, 8}, // more than CPUs
		{1, 1, 1, 1},
		{1, 8192, 8192, 5000},
	} {
		limits := queue.Limits{CanQueue: c.canQueue, CmdPerLUN: c.cmdPerLUN, HWQueues: c.queues, CPUs: runtime.NumCPU()}
		t.Run(fmt.Sprintf("%d,%d,%d", c.queues, c.canQueue, c.cmdPerLUN), func(t *testing.T) {
			want, err := guestRules(t).Predict(limits, c.write)
			if err != nil {
				t.Fatal(err)
			}
			d := loopDisk(t, limits)
			depth := d.get("queue_depth")
			if err := probe.Poke(d.addr); err != nil {
				t.Fatal(err)
			}
			got := d.seen(p)
			if got.Allocated() != want.Allocated || got.MapDepth != want.MapDepth || got.MapShift != want.MapShift ||
				got.QueueDepth != want.QueueDepth || got.HWQueues != want.HWQueues || got.CmdPerLUN != want.CmdPerLUN || got.CanQueue != c.canQueue {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
			if got.MinToken < want.MinToken || got.MaxToken > want.MaxToken {
				t.Errorf("tokens %d to %d, want %d to %d", got.MinToken, got.MaxToken, want.MinToken, want.MaxToken)
			}
			if depth != int64(want.QueueDepth) {
				t.Errorf("queue_depth reads %d, want %d", depth, want.QueueDepth)
			}
			err = set(d.attr("queue_depth"), c.write)
			if w := want.Lowered; (err == nil) != w.Accepted || (err != nil && !errors.Is(err, unix.EINVAL)) || d.get("queue_depth") != int64(w.QueueDepth) {
				t.Errorf("wrote %d: %v, reads %d; want %+v", c.write, err, d.get("queue_depth"), w)
			}
			if err := probe.Poke(d.addr); err != nil {
				t.Fatal(err)
			}
			if after := d.seen(p); after.Starts <= got.Starts || after.MapChanges != 0 || after.Allocated() != want.Allocated {
				t.Errorf("after the write: %+v", after)
			}
			d.idle()
		})
	}
}

// TestGuestCommand runs lunlab probe as a user would.
func TestGuestCommand(t *testing.T) {
	guest(t)
	d := debugDisk(t, "max_queue=32", "submit_queues=2", "delay=0")
	run := func(edit func(*exec.Cmd), args ...string) (string, string, int) {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := exec.Command("/bin/lunlab", append([]string{"probe"}, args...)...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		if edit != nil {
			edit(cmd)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// It goes on watching, or has failed before.
		ctrlC := time.AfterFunc(4*time.Second, func() { cmd.Process.Signal(os.Interrupt) })
		cmd.Wait()
		ctrlC.Stop()
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}

	out, errs, code := run(nil, "--poke", d.dev)
	if code != 0 || errs != "" || strings.Count(out, "DEVICE") != 1 || !strings.Contains(out, d.addr+"  "+filepath.Base(d.dev)+"  ") || strings.Contains(out, "NOT EXACT") {
		t.Errorf("Ctrl-C: exit %d\n%s%s", code, out, errs)
	}
	if !strings.Contains(out, "kernel rules: "+guestRules(t).Name) {
		t.Errorf("want rules %s:\n%s", guestRules(t).Name, out)
	}
	if out, errs, code = run(nil, d.addr); code != 0 || !strings.Contains(out, "no command seen yet: "+d.addr) || strings.Contains(out, "DEVICE") {
		t.Errorf("idle device: exit %d\n%s%s", code, out, errs)
	}
	if out, errs, code = run(nil, "sdzz"); code != 2 || !strings.Contains(errs, "sdzz is no SCSI disk") || !strings.Contains(errs, d.addr) {
		t.Errorf("no such disk: exit %d\n%s%s", code, out, errs)
	}
	nobody := func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if out, errs, code = run(nobody); code != 2 || !strings.Contains(errs, "takes root: sudo lunlab probe") {
		t.Errorf("not root: exit %d\n%s%s", code, out, errs)
	}
}
