package scenario

import (
	"context"
	"fmt"
	"time"

	"lunlab/queue"
)

const (
	lateAnswer = 100 * time.Second
	lateOffset = 4 << 20 // where nobody reads but the scenario
)

// ehLate has a target answer long after the command's time is over.
var ehLate = Scenario{
	Name:    "eh/late-answer",
	Shows:   "what becomes of a command of virtio_scsi that is answered after three time-outs: the driver lets it wait, and the answer counts",
	Hosts:   []string{VirtIOSCSI},
	Timeout: 5 * time.Minute,
	virtual: true,
	served:  Case{Host: VirtIOSCSI, Limits: queue.Limits{HWQueues: 1, CanQueue: umlQueueSize, CmdPerLUN: 64, ClampsDepth: true}},
	faults:  []string{fmt.Sprintf("cmd=read lba=%d-%d delay=%v", lateOffset/512, lateOffset/512+7, lateAnswer)},
	run:     onVirtIO((*run).late),
}

func (r *run) late(ctx context.Context, d *disk, m *hostMeter) error {
	if err := d.set(commandTimeout, "device/timeout"); err != nil {
		return err
	}
	before, err := d.counter("iotmo_cnt")
	if err != nil {
		return err
	}
	r.step("read")
	start := time.Now()
	err = within(ctx, func() error { return readDirect(d.path(), lateOffset) })
	took := time.Since(start)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.checkNone("the read", err)
	r.checkAtLeast("seconds that it took", int(lateAnswer.Seconds()), int(took.Seconds()), "")
	r.fact("read took", took.Round(time.Millisecond))
	after, err := d.counter("iotmo_cnt")
	if err != nil {
		return err
	}
	const why = "the driver's eh_timed_out starts the command's time anew"
	r.check("iotmo_cnt", int(lateAnswer.Seconds())/commandTimeout, after-before, why)
	r.check("commands aborted at the target", 0, m.ask("").Aborted, why)
	return nil
}
