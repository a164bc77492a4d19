package scenario

import (
	"context"
	"time"

	"lunlab/queue"
)

// countersHeld reads the busy counts while the target holds every command.
var countersHeld = Scenario{
	Name:    "counters/held",
	Shows:   "whether device_busy and host_busy are what the target holds, while all completions are held back",
	Hosts:   []string{TCMLoop},
	Timeout: time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		if err := r.watch(); err != nil {
			return err
		}
		r.step("fill")
		fio, err := endless(r.disk, 96, 1).start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		defer r.release()
		if err := r.waitFirst(ctx); err != nil {
			return err
		}
		peak := noPeak
		if _, err := r.peak(ctx, 64, &peak); err != nil {
			return err
		}
		for _, c := range []struct{ name, attr string }{
			{"device_busy", "/sys/block/" + r.disk.name + "/device"},
			{"host_busy", "/sys/class/scsi_host/" + r.disk.host()},
		} {
			n, err := readInt(c.attr, c.name)
			if err != nil {
				return err
			}
			r.check(c.name+" while all is held", r.disk.meter.InFlight(), n, "what the target holds")
		}
		r.fact("held", r.disk.meter.InFlight())
		r.release()
		r.step("stop fio")
		_, err = fio.stop()
		return err
	}),
}
