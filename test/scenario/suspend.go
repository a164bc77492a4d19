package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"lunlab/queue"
)

// suspendDelay is how long a test of suspend waits before it resumes, in seconds; an
// emulated CPU doesn't keep to it.
const suspendDelay = 1

// suspendFreezer stops all processes, the target's among them, and suspendDevices
// also suspends the devices, whose SCSI queues are quiesced. The kernel resumes by
// itself (CONFIG_PM_SLEEP_DEBUG).
var (
	suspendFreezer = Scenario{
		Name:    "suspend/freezer",
		Shows:   "whether I/O goes on, and is right, after all processes were frozen, the target's with them, and thawed",
		Hosts:   []string{TCMLoop},
		Timeout: 3 * time.Minute,
		run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
			return r.suspends(ctx, h.disks[0], "freezer")
		}),
	}
	suspendDevices = Scenario{
		Name:    "suspend/devices",
		Shows:   "whether I/O goes on, and is right, after devices were suspended under it, their queues quiesced, and resumed",
		Hosts:   []string{SCSIDebug}, // a target that isn't frozen with the processes
		Timeout: 3 * time.Minute,
		run: func(ctx context.Context, r *run) error {
			r.step("attach")
			d, err := attachDebug(ctx, Case{Host: SCSIDebug, Limits: queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}})
			if err != nil {
				return err
			}
			return errors.Join(r.suspends(ctx, d, "devices"), d.remove())
		},
	}
)

// suspends suspends the kernel under I/O, up to a stage, several times.
func (r *run) suspends(ctx context.Context, d *disk, stage string) error {
	const rounds = 3
	if err := r.prepareSuspend(stage); err != nil {
		r.Verdict = Skipped
		return err
	}
	defer writeFile("/sys/power/pm_test", "none")
	if err := d.waitQueue(ctx); err != nil {
		return err
	}
	job := verified(d, 48, 1)
	job.args = append(job.args, "--time_based", "--runtime=600", "--verify_backlog=64")
	fio, err := job.start(ctx)
	if err != nil {
		return err
	}
	defer fio.kill()
	before, _ := readInt("/sys/power/suspend_stats", "success") // not in kernels before 5.5
	var longest time.Duration
	for i := range rounds {
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		r.step(fmt.Sprintf("suspend, %d of %d", i+1, rounds))
		start := time.Now()
		err := within(ctx, func() error { return writeFile("/sys/power/state", "freeze") })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		longest = max(longest, time.Since(start))
		r.checkNone(fmt.Sprintf("suspend %d", i+1), err)
	}
	if err := r.goesOn(ctx, d); err != nil {
		return err
	}
	_, err = fio.stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.checkNone("the I/O", err)
	if n, err := readInt("/sys/power/suspend_stats", "success"); err == nil {
		r.check("suspends that the kernel counts", rounds, n-before, "")
	}
	state, err := d.sysfs("device/state")
	if err != nil {
		return err
	}
	r.check("state of the device", "running", state, "")
	r.fact("suspended", plural(rounds, "time"))
	r.fact("longest", longest.Round(10*time.Millisecond))
	return nil
}

// prepareSuspend has a suspend end at the stage, after the delay. Its error is why
// that can't be.
func (r *run) prepareSuspend(stage string) error {
	if !r.Disposable {
		return errors.New("it suspends the machine: try it in a guest")
	}
	states, err := os.ReadFile("/sys/power/state")
	if err != nil || !strings.Contains(string(states), "freeze") {
		return errors.New("the kernel can't suspend: CONFIG_SUSPEND=y")
	}
	if err := writeFile("/sys/power/pm_test", stage); err != nil {
		return fmt.Errorf("the kernel has no tests of suspend: CONFIG_PM_SLEEP_DEBUG=y: %w", err)
	}
	return writeFile("/sys/module/suspend/parameters/pm_test_delay", fmt.Sprint(suspendDelay))
}
