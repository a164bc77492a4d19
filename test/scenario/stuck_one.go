package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lunlab/queue"
	"lunlab/target"
)

// stuckOne holds one LUN's commands while its neighbours on the same host work.
var stuckOne = Scenario{
	Name:    "stuck/one-of-four",
	Shows:   "whether LUNs go on while another on their host answers nothing: with what its queue_depth lets it have, and with more offered",
	Hosts:   []string{TCMLoop},
	Timeout: 2 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 1, CanQueue: 64, CmdPerLUN: 32}, 4, func(ctx context.Context, r *run, h *loopHost) error {
		stuck := h.disks[0]
		if err := stuck.set(300, "device/timeout"); err != nil {
			return err
		}
		// Requests have their tags before they ask for a budget token. What waits
		// for one holds a tag that the others could use.
		for _, offered := range []int{16, 128} {
			r.step(fmt.Sprintf("%d I/Os on the LUN that is stuck", offered))
			patience := time.Minute
			if offered > 32 {
				patience = 15 * time.Second
			}
			done, held, err := besideStuck(ctx, r, h.disks, offered, patience)
			if err != nil {
				return err
			}
			r.fact(fmt.Sprintf("%d offered: held", offered), held)
			r.fact("done by the others", fmt.Sprint(done))
			if offered > 32 {
				continue // no rule says whether the others go on
			}
			for i, n := range done {
				r.checkAtLeast(fmt.Sprintf("commands of LUN %d meanwhile", i+1), enough, n, "there are tags left")
			}
		}
		return nil
	}),
}

// enough commands show that a LUN isn't held up.
const enough = 200

// besideStuck holds what is offered to the first disk and gives the others I/O
// for some seconds. It returns the commands that each of them has done, until it
// had enough, and what the first held.
func besideStuck(ctx context.Context, r *run, disks []*disk, offered int, patience time.Duration) (done []int, held int, err error) {
	stuck, others := disks[0], disks[1:]
	stuck.meter.Hold()
	defer stuck.meter.Release()
	var all []*fioRun
	defer func() {
		for _, f := range all {
			f.kill()
		}
	}()
	start := func(d *disk, depth int) error {
		f, err := endless(d, depth, 1).start(ctx)
		if err == nil {
			all = append(all, f)
		}
		return err
	}
	if err := start(stuck, offered); err != nil {
		return nil, 0, err
	}
	if _, err := target.Settle(ctx, stuck.meter.InFlight, min(offered, 32), fillQuiet, fillPatience); err != nil {
		return nil, 0, err
	}
	var before []uint64
	for _, d := range others {
		before = append(before, d.meter.Done())
		if err := start(d, 16); err != nil {
			return nil, 0, err
		}
	}
	err = r.until(ctx, patience, func() (bool, error) {
		least := enough
		done = done[:0]
		for i, d := range others {
			n := int(d.meter.Done() - before[i])
			done, least = append(done, n), min(least, n)
		}
		return least >= enough, nil
	})
	if err != nil && !errors.Is(err, errNotYet) {
		return nil, 0, err
	}
	held = stuck.meter.InFlight()
	stuck.meter.Release()
	for _, f := range all {
		if _, err := f.stop(); err != nil {
			return nil, 0, err
		}
	}
	all = nil
	return done, held, nil
}
