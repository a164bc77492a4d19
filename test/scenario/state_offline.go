package scenario

import (
	"context"
	"syscall"
	"time"

	"lunlab/queue"
)

// stateOffline sets a device offline while I/O runs, and running again.
var stateOffline = Scenario{
	Name:    "state/offline",
	Shows:   "whether I/O fails at once on a device that is set offline, and is right again when it is set running",
	Hosts:   []string{TCMLoop},
	Timeout: time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		d := h.disks[0]
		r.step("offline under I/O")
		fio, err := endless(d, 96, 1).start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		f, err := openDirect(d.path()) // once it is offline, it can't be opened
		if err != nil {
			return err
		}
		defer f.Close()
		if err := d.set("offline\n", "device/state"); err != nil {
			return err
		}
		_, err = fio.wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.check("I/O on the offline device fails", true, err != nil, "")
		count := d.witness.counted().Commands
		if n, err := readErrors(f, 4, syscall.EIO); err != nil {
			return err
		} else {
			r.check("reads of 4 that fail with EIO", 4, n, "")
		}
		r.check("commands that reach the target meanwhile", 0, d.witness.counted().Commands-count, "")
		r.step("running")
		if err := d.set("running\n", "device/state"); err != nil {
			return err
		}
		return r.checkVerified(ctx, "I/O afterwards", verified(d, 32, 1))
	}),
}
