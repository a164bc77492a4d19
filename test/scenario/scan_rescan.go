package scenario

import (
	"context"
	"fmt"
	"time"

	"lunlab/queue"
)

// scanRescan deletes a device through sysfs while I/O runs on it, and scans its
// host again.
var scanRescan = Scenario{
	Name:    "scan/rescan",
	Shows:   "whether a device that is deleted under I/O ends its commands, and comes back whole when its host is scanned",
	Hosts:   []string{TCMLoop},
	Timeout: 5 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const rounds = 5
		d := h.disks[0]
		depth, err := d.queueDepth()
		if err != nil {
			return err
		}
		back, ended, failed := 0, 0, 0
		for i := range rounds {
			r.step(fmt.Sprintf("delete and rescan, %d of %d", i+1, rounds))
			fio, err := endless(d, 96, 1).start(ctx)
			if err != nil {
				return err
			}
			defer fio.kill()
			if err := r.goesOn(ctx, d); err != nil {
				return err
			}
			if err := d.set(1, "device/delete"); err != nil {
				return err
			}
			// Where all that was in flight ended well, fio reads the end of a disk
			// without blocks again and again.
			if fio.endsSoon(time.Second) {
				failed++
			}
			fio.kill()
			if fio.endsSoon(0) {
				ended++
			}
			if err := writeFile("/sys/class/scsi_host/"+d.host()+"/scan", "- - -"); err != nil {
				return err
			}
			if d.name, err = r.appear(ctx, d.device); err != nil {
				return err
			}
			back++
			if err := d.waitQueue(ctx); err != nil {
				return err
			}
		}
		r.check("times that fio's commands on the deleted device ended", rounds, ended, "")
		r.check("times that it came back", rounds, back, "")
		now, err := d.queueDepth()
		if err != nil {
			return err
		}
		r.check("queue_depth of the last", depth, now, "")
		r.fact("rounds", rounds)
		r.fact("times that fio saw errors", failed)
		r.step("verify")
		return r.checkVerified(ctx, "I/O on the last", verified(d, 32, 1))
	}),
}
