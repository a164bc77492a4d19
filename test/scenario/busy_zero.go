package scenario

import (
	"context"
	"sync/atomic"
	"time"

	"lunlab/lun"
	"lunlab/queue"
)

// busyZero answers BUSY to the only command of the device, after which nothing
// is in flight whose end could start the queue again.
var busyZero = Scenario{
	Name:    "busy/zero",
	Shows:   "whether a device that was BUSY with nothing else in flight is tried again",
	Hosts:   []string{TCMLoop},
	Timeout: 2 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 1, CmdPerLUN: 1}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const reads = 64
		d := h.disks[0]
		var n, busy atomic.Int64
		d.witness.answer(func(c *lun.Command) bool {
			if n.Add(1)%2 == 0 {
				return false
			}
			busy.Add(1)
			c.Status = lun.Busy
			return true
		})
		start := time.Now()
		r.step("BUSY to every other command")
		_, err := fioJob{disk: d.path(), depth: 1, jobs: 1, args: []string{"--rw=randread", "--size=256k"}}.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		d.witness.answer(nil)
		r.checkNone("the reads, tried again", err)
		r.checkAtLeast("BUSY answers", reads, int(busy.Load()), "one for each read")
		r.fact("BUSY", busy.Load())
		r.fact("each read took", (time.Since(start) / reads).Round(time.Millisecond))
		return nil
	}),
}
