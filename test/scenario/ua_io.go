package scenario

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"lunlab/lun"
	"lunlab/queue"
)

// attentions are the unit attention conditions that the kernel tells apart, and
// what it says of them (scsi_report_sense in drivers/scsi/scsi_error.c).
var attentions = []struct {
	name, says string
	code       uint16
}{
	{"POWER ON, RESET, OR BUS DEVICE RESET OCCURRED", "Power-on or device reset occurred", 0x2900},
	{"MODE PARAMETERS CHANGED", "Mode parameters changed", 0x2a01},
	{"CAPACITY DATA HAS CHANGED", "Capacity data has changed", 0x2a09},
	{"INQUIRY DATA HAS CHANGED", "Inquiry data has changed", 0x3f03},
	{"REPORTED LUNS DATA HAS CHANGED", "LUN assignments on this target have changed", 0x3f0e},
	{"THIN PROVISIONING SOFT THRESHOLD REACHED", "thin provisioning soft threshold", 0x3807},
}

// uaIO answers I/O with unit attentions.
var uaIO = Scenario{
	Name:    "ua/io",
	Shows:   "whether I/O that is answered with a unit attention is tried again, without an error, and the kernel's log names each",
	Hosts:   []string{TCMLoop},
	Timeout: 3 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 64}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const each = 5
		d := h.disks[0]
		log, err := openKmsg()
		if err != nil {
			return err
		}
		defer log.close()
		if err := r.settled(ctx, d); err != nil {
			return err
		}
		start := d.witness.counted()
		before, err := d.counter("ioerr_cnt")
		if err != nil {
			return err
		}
		job := verified(d, 48, 1)
		job.args = append(job.args, "--time_based", "--runtime=600", "--verify_backlog=64")
		fio, err := job.start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		for _, a := range attentions {
			r.step(a.name)
			var asked atomic.Int64
			d.witness.answer(func(c *lun.Command) bool {
				switch c.CDB[0] {
				case 0x28, 0x2a: // READ(10), WRITE(10); INQUIRY lets conditions be
				default:
					return false
				}
				if asked.Add(1) > each {
					return false
				}
				c.Fail(lun.Sense{Key: lun.UnitAttention, Code: a.code})
				return true
			})
			if err := r.until(ctx, time.Minute, func() (bool, error) { return asked.Load() > each, nil }); err != nil {
				return fmt.Errorf("no more I/O after %s: %w", a.name, err)
			}
			if err := r.goesOn(ctx, d); err != nil {
				return err
			}
		}
		d.witness.answer(nil)
		_, err = fio.stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the I/O", err)
		said := map[string]int{}
		err = log.each(func(rec record) {
			for _, a := range attentions {
				if strings.Contains(rec.text, " "+d.device+": ") && strings.Contains(rec.text, a.says) {
					said[a.name]++
				}
			}
		})
		if err != nil {
			return err
		}
		for _, a := range attentions {
			r.check("times that the log says: "+a.says, each, said[a.name], a.name)
		}
		// Some have the kernel look at the device anew, which may try what the target
		// doesn't have.
		if err := r.settled(ctx, d); err != nil {
			return err
		}
		after, err := d.counter("ioerr_cnt")
		if err != nil {
			return err
		}
		r.check("ioerr_cnt", d.witness.counted().Failed-start.Failed, after-before, "the target's own count")
		r.fact("unit attentions", each*len(attentions))
		return nil
	}),
}
