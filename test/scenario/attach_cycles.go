package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lunlab/queue"
)

// attachCycles attaches and detaches a LUN 200 times: what the kernel makes for
// a host and a device has to go with them.
var attachCycles = Scenario{
	Name:    "attach/cycles",
	Shows:   "whether 200 times attach and detach leave anything behind",
	Hosts:   []string{TCMLoop},
	Timeout: 10 * time.Minute,
	run: func(ctx context.Context, r *run) error {
		const cycles = 200
		kinds := []string{"/sys/class/scsi_host", "/sys/class/scsi_device", "/sys/block", "/sys/class/uio"}
		var before [][]string
		for _, k := range kinds {
			before = append(before, entries(k))
		}
		var longest time.Duration
		for i := range cycles {
			if i%20 == 0 {
				r.step(fmt.Sprintf("cycle %d of %d", i, cycles))
			}
			start := time.Now()
			h, err := r.loopHost(ctx, queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 32}, 1)
			if err != nil {
				return err
			}
			if err := h.remove(); err != nil {
				return err
			}
			longest = max(longest, time.Since(start))
		}
		for i, k := range kinds {
			r.check("left in "+k, list(before[i]), list(slices.Clone(entries(k))), "")
		}
		r.fact("cycles", cycles)
		r.fact("longest", longest.Round(time.Millisecond))
		return nil
	},
}
