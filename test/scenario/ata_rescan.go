package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lunlab/queue"
	"lunlab/test/probe"
)

// ataRescan deletes a disk of AHCI and scans its host again. The disk is made
// with depth 1, and gets 32 when libata has looked at it: where the map is left
// out then, that which was there goes.
var ataRescan = Scenario{
	Name:    "ata/rescan",
	Shows:   "whether an AHCI disk that is deleted comes back whole, and its budget map's memory is freed once",
	Hosts:   []string{AHCI},
	Timeout: 2 * time.Minute,
	run: func(ctx context.Context, r *run) error {
		const rounds = 3
		r.step("attach")
		agree, err := queue.Agree(r.rules, ataLimits[AHCI], 0)
		if err != nil {
			return err
		}
		if !agree {
			return errors.New("no prediction: the rules that fit this kernel differ here; see lunlab rules")
		}
		if r.pred, err = r.rules[0].Predict(ataLimits[AHCI], 0); err != nil {
			return err
		}
		d, err := attachATA(ctx, AHCI)
		if err != nil {
			return err
		}
		frees, err := probe.WatchFrees()
		if err != nil {
			return err
		}
		defer frees.Close()
		for i := range rounds {
			r.step(fmt.Sprintf("delete and rescan, %d of %d", i+1, rounds))
			if err := d.set(1, "device/delete"); err != nil {
				return err
			}
			if err := writeFile("/sys/class/scsi_host/"+d.host()+"/scan", "- - -"); err != nil {
				return err
			}
			if d.name, err = r.appear(ctx, d.device); err != nil {
				return err
			}
			if err := d.waitQueue(ctx); err != nil {
				return err
			}
		}
		depth, err := d.queueDepth()
		if err != nil {
			return err
		}
		r.check("queue_depth of the last", r.pred.QueueDepth, depth, "")
		r.step("verify")
		if err := r.checkVerified(ctx, "I/O on the last", verified(d, 32, 1)); err != nil {
			return err
		}
		twice, err := frees.Twice()
		if err != nil {
			return err
		}
		why := ""
		if r.pred.HintFreedTwice {
			why = "the map's hint is freed when the map is, and again with the device"
		}
		r.check("per-CPU memory freed twice", r.pred.HintFreedTwice, twice > 0, why)
		r.fact("rounds", rounds)
		r.fact("per-CPU allocations freed twice", twice)
		return nil
	},
}
