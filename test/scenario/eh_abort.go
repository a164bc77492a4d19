package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lunlab/queue"
)

// ehAbort lets commands time out: the kernel has to abort them at the target and
// try them again.
var ehAbort = Scenario{
	Name:    "eh/abort",
	Shows:   "what becomes of commands that the target doesn't answer in time: aborted there, tried again, and none lost",
	Hosts:   []string{TCMLoop},
	Timeout: 3 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const timeout, commands = 3, 8
		d := h.disks[0]
		if err := d.set(timeout, "device/timeout"); err != nil {
			return err
		}
		before, err := d.counter("iotmo_cnt")
		if err != nil {
			return err
		}
		r.step("hold until they time out")
		d.meter.Hold()
		start := time.Now()
		fio, err := fioJob{disk: d.path(), depth: commands, jobs: 1, args: []string{"--rw=randread", "--size=64k"}}.start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		defer d.meter.Release()
		err = r.until(ctx, time.Minute, func() (bool, error) { return d.witness.abortions() >= commands, nil })
		if err != nil && !errors.Is(err, errNotYet) {
			return err
		}
		aborted := int(d.witness.abortions())
		r.checkAtLeast("commands aborted at the target", commands, aborted, fmt.Sprintf("time-out of %d s", timeout))
		r.fact("aborted after", time.Since(start).Round(100*time.Millisecond))

		r.step("let them go")
		d.meter.Release()
		_, err = fio.wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the reads, tried again", err)
		r.fact("all read after", time.Since(start).Round(100*time.Millisecond))
		after, err := d.counter("iotmo_cnt")
		if err != nil {
			return err
		}
		r.checkAtLeast("iotmo_cnt", commands, int(after-before), "")
		state, err := d.sysfs("device/state")
		if err != nil {
			return err
		}
		r.check("state of the device", "running", state, "")
		r.step("verify")
		return r.checkVerified(ctx, "I/O afterwards", verified(d, 32, 1))
	}),
}
