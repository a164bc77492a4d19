package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/lun"
	"lunlab/queue"
)

// ehLUNReset resets a LUN of ours while it holds all commands.
var ehLUNReset = Scenario{
	Name:    "eh/lun-reset",
	Shows:   "what becomes of the commands that are held when a LOGICAL UNIT RESET is asked for: ended at the target, tried again, and none lost",
	Hosts:   []string{TCMLoop},
	Timeout: 3 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const commands = 16
		d := h.disks[0]
		if err := d.set(5, "device/timeout"); err != nil {
			return err
		}
		r.step("hold")
		d.meter.Hold()
		fio, err := fioJob{disk: d.path(), depth: commands, jobs: 1, args: []string{"--rw=randread", "--size=256k"}}.start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		defer d.meter.Release()
		if err := r.until(ctx, 30*time.Second, func() (bool, error) { return d.meter.InFlight() >= commands, nil }); err != nil {
			return fmt.Errorf("%d commands of fio: %w", commands, err)
		}
		r.step("reset")
		before, start := d.witness.seen(lun.LogicalUnitReset), time.Now()
		if err := within(ctx, func() error { return sgReset(d.path(), sgResetDevice) }); err != nil {
			return err
		}
		r.fact("reset took", time.Since(start).Round(10*time.Millisecond))
		r.check("resets that came to the target", 1, d.witness.seen(lun.LogicalUnitReset)-before, "")
		r.checkAtLeast("commands that it ended", commands, int(d.witness.abortions()), "")

		r.step("let go")
		d.meter.Release()
		_, err = fio.wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the reads, tried again", err)
		r.fact("all read after", time.Since(start).Round(100*time.Millisecond))
		r.step("verify")
		return r.checkVerified(ctx, "I/O afterwards", verified(d, 32, 1))
	}),
}

// debugLimits are those of a scsi_debug host where none matter.
var debugLimits = queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}

// ehResets has scsi_debug, which takes every kind, reset under I/O.
var ehResets = Scenario{
	Name:    "eh/resets",
	Shows:   "whether I/O goes on, and is right, through resets of the device, the target, the bus and the host",
	Hosts:   []string{SCSIDebug},
	Timeout: 4 * time.Minute,
	run: func(ctx context.Context, r *run) error {
		d, err := debugDisk(ctx)
		if err != nil {
			return err
		}
		r.disk = d
		r.record(d)
		err = r.resets(ctx, d)
		r.recorded()
		return errors.Join(err, d.remove())
	},
}

func (r *run) resets(ctx context.Context, d *disk) error {
	// What a reset ends without a word is tried again when its time is over.
	if err := d.set(3, "device/timeout"); err != nil {
		return err
	}
	job := verified(d, 48, 1)
	job.args = append(job.args, "--time_based", "--runtime=600", "--verify_backlog=64")
	fio, err := job.start(ctx)
	if err != nil {
		return err
	}
	defer fio.kill()
	for _, how := range []struct {
		name string
		arg  int
	}{{"device", sgResetDevice}, {"target", sgResetTarget}, {"bus", sgResetBus}, {"host", sgResetHost}} {
		r.step("reset the " + how.name)
		for range 3 {
			r.checkNone(how.name+" reset", within(ctx, func() error { return sgReset(d.path(), how.arg|sgNoEscalate) }))
			if err := r.goesOn(ctx, d); err != nil {
				return fmt.Errorf("after a reset of the %s: %w", how.name, err)
			}
		}
	}
	_, err = fio.stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.checkNone("the I/O", err)
	return nil
}

// ioctl SG_SCSI_RESET and its arguments (include/uapi/scsi/sg.h).
const (
	sgSCSIReset   = 0x2284
	sgResetDevice = 1
	sgResetBus    = 2
	sgResetHost   = 3
	sgResetTarget = 4
	sgNoEscalate  = 0x100
)

// sgReset asks the kernel to reset a disk.
func sgReset(path string, how int) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.IoctlSetPointerInt(int(f.Fd()), sgSCSIReset, how)
}

// within runs what may hang in the kernel, where nothing can end it, and waits
// for it as long as ctx lasts.
func within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
