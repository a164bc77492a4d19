package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"lunlab/lun"
	"lunlab/queue"
)

// countersErrors has commands fail in each way that the kernel tries again, and
// some time out, and holds the counters against what the target has done.
var countersErrors = Scenario{
	Name:    "counters/errors",
	Shows:   "whether ioerr_cnt and iotmo_cnt count exactly the commands that didn't end well, and those that timed out, and iodone_cnt both",
	Hosts:   []string{TCMLoop},
	Timeout: 2 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const lost, timeout = 6, 5
		d := h.disks[0]
		names := []string{"iorequest_cnt", "iodone_cnt", "ioerr_cnt", "iotmo_cnt"}
		if err := r.settled(ctx, d); err != nil {
			return err
		}
		var before [4]uint64
		for i, n := range names {
			var err error
			if before[i], err = d.counter(n); err != nil {
				return err
			}
		}
		start := d.witness.counted()
		r.step("answers that are tried again")
		var n atomic.Int64
		d.witness.answer(func(c *lun.Command) bool {
			switch n.Add(1) % 12 {
			case 1:
				c.Status = lun.Busy
			case 5:
				c.Status = lun.TaskSetFull
			case 9:
				c.Fail(lun.Sense{Key: lun.AbortedCommand, Code: 0x4400}) // INTERNAL TARGET FAILURE
			default:
				return false
			}
			return true
		})
		reads := fioJob{disk: d.path(), depth: 16, jobs: 1, args: []string{"--rw=randread", "--size=2m"}}
		_, err := reads.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the reads, tried again", err)
		failed := d.witness.counted().Failed - start.Failed

		r.step("time-outs")
		if err := d.set(timeout, "device/timeout"); err != nil {
			return err
		}
		n.Store(0)
		d.witness.answer(func(c *lun.Command) bool {
			if n.Add(1) > lost {
				return false
			}
			<-c.Cancel
			return true
		})
		reads.depth = lost
		_, err = reads.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.witness.answer(nil)
		r.checkNone("the reads, tried again after time-outs", err)
		// The target's answer to an aborted command goes nowhere, and may come late.
		err = r.until(ctx, 10*time.Second, func() (bool, error) { return d.witness.abortions() >= lost, nil })
		if err != nil && !errors.Is(err, errNotYet) {
			return err
		}
		aborted := d.witness.abortions()
		r.checkAtLeast("commands aborted at the target", lost, int(aborted), fmt.Sprintf("time-out of %d s", timeout))

		all := d.witness.counted().Commands - start.Commands
		for i, want := range []uint64{all, all, failed, aborted} {
			got, err := d.counter(names[i])
			if err != nil {
				return err
			}
			r.check(names[i], want, got-before[i], "the target's own count")
		}
		r.fact("commands", all)
		r.fact("failed", failed)
		r.fact("timed out", aborted)
		return nil
	}),
}
