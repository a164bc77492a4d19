package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"lunlab/queue"
)

// cpuHotplug takes CPUs, whose hardware queues have I/O, away and gives them back.
var cpuHotplug = Scenario{
	Name:    "cpu/hotplug",
	Shows:   "whether I/O goes on, and is right, while CPUs go and come back with their hardware queues",
	Hosts:   []string{TCMLoop},
	Timeout: 3 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 4, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		online := func(cpu int) string { return fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", cpu) }
		if _, err := os.Stat(online(1)); err != nil || !r.Disposable {
			r.Verdict = Skipped
			return errors.New("it takes CPUs away: it needs a guest with more than one")
		}
		d := h.disks[0]
		job := verified(d, 48, 1)
		job.args = append(job.args, "--time_based", "--runtime=600", "--verify_backlog=64")
		fio, err := job.start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		changes := 0
		for cpu := 1; cpu < r.cpus; cpu++ {
			defer writeFile(online(cpu), "1")
		}
		for round := range 3 {
			for _, to := range []string{"0", "1"} {
				for cpu := 1; cpu < r.cpus; cpu++ {
					r.step(fmt.Sprintf("round %d of 3: CPU %d online %s", round+1, cpu, to))
					if err := writeFile(online(cpu), to); err != nil {
						return fmt.Errorf("CPU %d: %w", cpu, err)
					}
					changes++
					if err := r.goesOn(ctx, d); err != nil {
						return fmt.Errorf("CPU %d online %s: %w", cpu, to, err)
					}
				}
			}
		}
		_, err = fio.stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the I/O", err)
		r.fact("changes", changes)
		return nil
	}),
}
