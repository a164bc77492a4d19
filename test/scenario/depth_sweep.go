package scenario

import (
	"context"
	"fmt"
	"time"

	"lunlab/queue"
)

// depthSweep writes queue_depth up and down while I/O runs, and counts what is
// in flight at each.
var depthSweep = sweep("depth/sweep", "what is in flight at each queue_depth that is written while I/O runs, from 1 to can_queue and back",
	queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64})

// depthSweepQueues is the same on a host whose map can't be left out.
var depthSweepQueues = sweep("depth/sweep-2-queues", "the same with two hardware queues, where no rules leave the budget map out",
	queue.Limits{HWQueues: 2, CanQueue: 64, CmdPerLUN: 64})

func sweep(name, shows string, l queue.Limits) Scenario {
	return Scenario{
		Name: name, Shows: shows, Hosts: []string{TCMLoop}, Timeout: 2 * time.Minute,
		run: onLoop(l, 1, func(ctx context.Context, r *run, h *loopHost) error {
			if len(r.rules) != 1 {
				r.Verdict = Skipped
				return fmt.Errorf("no prediction: several rules fit this kernel")
			}
			l.CPUs = r.cpus
			model, err := r.rules[0].Attach(l)
			if err != nil {
				return err
			}
			if err := r.watch(); err != nil {
				return err
			}
			r.step("fill")
			fio, err := endless(r.disk, 96, l.Queues()).start(ctx)
			if err != nil {
				return err
			}
			defer fio.kill()
			defer r.release()
			if err := r.waitFirst(ctx); err != nil {
				return err
			}
			held, most := 0, 0
			depths := []int{1, 2, 3, 8, 33, 64, 31, 7, 1, 64}
			for _, depth := range depths {
				r.step(fmt.Sprintf("queue_depth %d", depth))
				w := model.WriteDepth(depth)
				peak := noPeak
				if _, err := r.write(ctx, w, &peak); err != nil {
					return err
				}
				n := max(peak.Device, peak.Target)
				if n <= w.QueueDepth {
					held++
				}
				most = max(most, n-w.QueueDepth)
			}
			r.fact("depths held", fmt.Sprintf("%d of %d", held, len(depths)))
			r.fact("most above", most)
			r.release()
			r.step("stop fio")
			_, err = fio.stop()
			return err
		}),
	}
}
