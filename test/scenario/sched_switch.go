package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lunlab/queue"
)

// schedSwitch changes the I/O scheduler and nr_requests while I/O runs.
var schedSwitch = Scenario{
	Name:    "sched/switch",
	Shows:   "whether I/O goes on, and is right, while the I/O scheduler and nr_requests are changed",
	Hosts:   []string{TCMLoop},
	Timeout: 2 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 2, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		d := h.disks[0]
		had, err := d.sysfs("queue/scheduler")
		if err != nil {
			return err
		}
		var scheds []string // "[none] mq-deadline"
		for _, s := range strings.Fields(had) {
			scheds = append(scheds, strings.Trim(s, "[]"))
		}
		job := verified(d, 48, 2)
		job.args = append(job.args, "--time_based", "--runtime=600", "--verify_backlog=64")
		fio, err := job.start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		const rounds = 4
		for i := range rounds {
			for _, s := range append(scheds, "none") {
				r.step(fmt.Sprintf("round %d of %d: %s", i+1, rounds, s))
				if err := d.set(s, "queue/scheduler"); err != nil {
					return err
				}
				for _, n := range []int{8, 64} {
					if err := d.set(n, "queue/nr_requests"); err != nil {
						return fmt.Errorf("nr_requests %d under %s: %w", n, s, err)
					}
					if err := r.goesOn(ctx, d); err != nil {
						return fmt.Errorf("nr_requests %d under %s: %w", n, s, err)
					}
				}
			}
		}
		_, err = fio.stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the I/O", err)
		r.fact("schedulers", list(scheds))
		r.fact("changes", rounds*(len(scheds)+1)*3)
		return nil
	}),
}
