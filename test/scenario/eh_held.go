package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ehHeld resets a LUN of virtio_scsi while it holds all commands.
var ehHeld = Scenario{
	Name:    "eh/held-reset",
	Shows:   "what becomes of commands of virtio_scsi that are held when a LOGICAL UNIT RESET comes: ended at the target, tried again, and none lost",
	Hosts:   []string{VirtIOSCSI},
	Timeout: 3 * time.Minute,
	virtual: true,
	served:  Case{Host: VirtIOSCSI, Limits: ehLate.served.Limits},
	run:     onVirtIO((*run).held),
}

func (r *run) held(ctx context.Context, d *disk, m *hostMeter) error {
	const commands, wait = 8, 40 * time.Second
	before := m.ask("").Aborted
	r.step("hold")
	m.Hold()
	defer m.Release()
	start := time.Now()
	ended := make(chan error, commands)
	for i := range commands {
		go func() { ended <- within(ctx, func() error { return readDirect(d.path(), lateOffset+int64(i)*4096) }) }()
	}
	all := func() (bool, error) { return m.InFlight() >= commands, nil }
	if err := r.until(ctx, 30*time.Second, all); err != nil {
		return fmt.Errorf("%d commands: %w", commands, err)
	}
	r.step("reset")
	if err := within(ctx, func() error { return sgReset(d.path(), sgResetDevice|sgNoEscalate) }); err != nil {
		return err
	}
	r.check("commands that it ended at the target", commands, m.ask("").Aborted-before, "")
	if err := r.until(ctx, 30*time.Second, all); err != nil && !errors.Is(err, errNotYet) {
		return err
	}
	r.check("commands that came again", commands, m.InFlight(), "the driver takes them for reset, and such are tried again")
	if err := sleep(ctx, wait); err != nil {
		return err
	}
	r.check("reads that have ended meanwhile", 0, len(ended), "")

	r.step("let go")
	m.Release()
	for range commands {
		r.checkNone("a read, tried again", <-ended)
	}
	r.fact("all read after", time.Since(start).Round(10*time.Millisecond))
	return ctx.Err()
}
