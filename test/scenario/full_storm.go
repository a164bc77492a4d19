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

// fullLimits leave the map out where the rules let them.
var fullLimits = queue.Limits{HWQueues: 1, CanQueue: 16, CmdPerLUN: 16}

// fullStorm answers TASK SET FULL above a number of commands, which the kernel
// has to learn, and then no more.
var fullStorm = Scenario{
	Name:    "full/storm",
	Shows:   "how far queue_depth falls when the target takes fewer commands than it says, and whether it rises again",
	Hosts:   []string{TCMLoop},
	Timeout: 3 * time.Minute,
	run: onLoop(fullLimits, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const takes = 12
		d := h.disks[0]
		if len(r.rules) != 1 {
			r.Verdict = Skipped
			return fmt.Errorf("no prediction: several rules fit this kernel")
		}
		l := fullLimits
		l.CPUs = r.cpus
		p, err := r.rules[0].Predict(l, 0)
		if err != nil {
			return err
		}
		var running, full atomic.Int64
		d.witness.answer(func(c *lun.Command) bool {
			defer running.Add(-1)
			if running.Add(1) > takes {
				full.Add(1)
				c.Status = lun.TaskSetFull
				return true
			}
			time.Sleep(20 * time.Millisecond)
			d.witness.Unit.Execute(c)
			return true
		})
		r.step("TASK SET FULL")
		fio, err := endless(d, 32, 1).start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()

		// More than ten of them, none two in 16 jiffies, lower the depth by one, and
		// a map holds the device to that. A device without one is left as it is.
		want, why := takes, "lowered by one after each 11 TASK SET FULL, and held by the map"
		if !p.Allocated {
			want, why = l.CmdPerLUN, "without a map, the kernel doesn't track TASK SET FULL"
		}
		depth := 0
		err = r.until(ctx, 90*time.Second, func() (bool, error) {
			n, err := d.queueDepth()
			depth = n
			return p.Allocated && n <= takes || full.Load() >= 1000, err
		})
		if err != nil && !errors.Is(err, errNotYet) {
			return err
		}
		before := full.Load()
		if err := sleep(ctx, 3*time.Second); err != nil {
			return err
		}
		if depth, err = d.queueDepth(); err != nil {
			return err
		}
		more := full.Load() - before
		r.check("queue_depth under TASK SET FULL", want, depth, why)
		r.check("TASK SET FULL goes on", !p.Allocated, more > 10, why)
		r.fact("TASK SET FULL", full.Load())
		r.fact("queue_depth then", depth)

		r.step("recovery")
		d.witness.answer(nil)
		if err := d.set(100, "device/queue_ramp_up_period"); err != nil {
			return err
		}
		start := time.Now()
		err = r.until(ctx, time.Minute, func() (bool, error) {
			n, err := d.queueDepth()
			depth = n
			return n == l.CmdPerLUN, err
		})
		if err != nil && !errors.Is(err, errNotYet) {
			return err
		}
		r.check("queue_depth, some time after the last", l.CmdPerLUN, depth, "raised by one in each queue_ramp_up_period")
		r.fact("recovered in", time.Since(start).Round(100*time.Millisecond))
		_, err = fio.stop()
		return err
	}),
}
