package scenario

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/queue"
)

// stateRefused writes the states that are the kernel's own to set: a device that
// user space had blocked would never be unblocked.
var stateRefused = Scenario{
	Name:    "state/refused",
	Shows:   "whether the kernel refuses the device states that user space may not set, and I/O goes on beside",
	Hosts:   []string{TCMLoop},
	Timeout: time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		d := h.disks[0]
		fio, err := endless(d, 96, 1).start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		for _, state := range []string{"created", "cancel", "deleted", "quiesce", "transport-offline", "blocked", "created-blocked", "nothing"} {
			r.step(state)
			got := "accepted"
			if err := d.set(state+"\n", "device/state"); errors.Is(err, unix.EINVAL) {
				got = "EINVAL"
			} else if err != nil {
				return err
			}
			r.check("state "+state+" written", "EINVAL", got, "user space may set running and offline")
		}
		state, err := d.sysfs("device/state")
		if err != nil {
			return err
		}
		r.check("state of the device", "running", state, "")
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		_, err = fio.stop()
		return err
	}),
}
