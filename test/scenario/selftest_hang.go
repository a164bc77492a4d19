package scenario

import (
	"context"
	"time"

	"lunlab/queue"
)

// selftestHang hangs on purpose: what is said of it is what is said of any. It is
// found by its name alone.
var selftestHang = Scenario{
	Name:    "selftest/hang",
	Shows:   "what a report says of a scenario that doesn't end: a target that never answers",
	Hosts:   []string{TCMLoop},
	Timeout: 15 * time.Second,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 4}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		d := h.disks[0]
		if err := d.set(600, "device/timeout"); err != nil {
			return err
		}
		r.step("hold, for ever")
		d.meter.Hold()
		_, err := fioJob{disk: d.path(), depth: 8, jobs: 1, args: []string{"--rw=read", "--size=64k", "--offset=1m"}}.run(ctx)
		return err
	}),
}
