package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/queue"
	"lunlab/target"
	"lunlab/target/tcmu"
)

// diskSize is the size of a disk under test, in bytes: room for the I/Os of
// the deepest case, 4 KiB each.
const diskSize = 64 << 20

// eraseTime is how long SANITIZE and FORMAT UNIT of a LUN of ours take.
const eraseTime = 2 * time.Second

// Names of what a case makes on the kernel.
const (
	deviceName = "ktest"
	loopWWN    = "naa.50014050000c5e57"
)

// attach makes the disk of a case.
func (r *run) attach(ctx context.Context, c Case) (*disk, error) {
	switch c.Host {
	case VirtIOSCSI:
		return r.attachVirtIO(ctx)
	case SCSIDebug:
		return attachDebug(ctx, c)
	case ISCSITCP:
		return r.attachISCSI(ctx, c)
	case AHCI, ATAPIIX:
		return attachATA(ctx, c.Host)
	}
	return r.attachLoop(ctx, c)
}

// attachLoop makes a host with the case's limits and a LUN of ours.
func (rn *runner) attachLoop(ctx context.Context, c Case) (*disk, error) {
	h, err := rn.loopHost(ctx, c.Limits, 1)
	if err != nil {
		return nil, err
	}
	h.disks[0].remove = h.remove
	return h.disks[0], nil
}

// loopHost is a tcm_loop host with LUNs of ours.
type loopHost struct {
	loop  *tcmu.Loop
	disks []*disk // by LUN
	undo  []func(context.Context) error
}

// remove takes the host away, whatever ended the scenario.
func (h *loopHost) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	for i := len(h.undo) - 1; i >= 0; i-- {
		if err := h.undo[i](ctx); err != nil {
			return err
		}
	}
	return nil
}

// loopHost makes memory LUNs of ours, behind TCMU and a tcm_loop host with
// these limits.
func (rn *runner) loopHost(ctx context.Context, l queue.Limits, luns int) (_ *loopHost, err error) {
	h := new(loopHost)
	defer func() {
		if err != nil {
			err = errors.Join(err, h.remove())
		}
	}()
	var devs []*tcmu.Device
	for i := range luns {
		store, err := mem.New(diskSize)
		if err != nil {
			return nil, err
		}
		unit, err := lun.NewDisk(store, lun.DiskOptions{EraseTime: eraseTime})
		if err != nil {
			return nil, err
		}
		w := &witness{Unit: unit}
		m := target.NewMeter(w)
		d := &disk{meter: m, witness: w}
		ledger := rn.ledgers.add(m, i)
		h.undo = append(h.undo, func(context.Context) error {
			rn.ledgers.remove(ledger)
			return unit.Close()
		})
		// Under emulation thousands of commands can take longer than the kernel's 30 s.
		dev, err := rn.engine.Create(ctx, tcmu.Config{Name: fmt.Sprintf("%s%d", deviceName, i), Size: diskSize, CommandTimeout: -1}, ledger)
		if err != nil {
			return nil, err
		}
		h.undo = append(h.undo, dev.Close)
		h.disks, devs = append(h.disks, d), append(devs, dev)
	}
	h.loop, err = rn.engine.CreateLoop(ctx, tcmu.LoopConfig{
		WWN: loopWWN, HWQueues: l.HWQueues, CanQueue: l.CanQueue, CmdPerLUN: l.CmdPerLUN,
	})
	if err != nil {
		return nil, err
	}
	h.undo = append(h.undo, h.loop.Close)
	for i, d := range h.disks {
		blk, err := h.loop.Attach(ctx, devs[i], i)
		if err != nil {
			return nil, err
		}
		d.name, d.device = filepath.Base(blk.Block), blk.HCTL
	}
	return h, nil
}

// attachDebug loads scsi_debug. Its commands take 20 ms at HZ=250, so that as
// many are in flight as the kernel lets be.
func attachDebug(ctx context.Context, c Case) (*disk, error) {
	args := []string{
		"scsi_debug", "delay=5", fmt.Sprintf("dev_size_mb=%d", diskSize>>20),
		fmt.Sprintf("submit_queues=%d", c.HWQueues),
	}
	if c.HostTagset {
		args = append(args, fmt.Sprintf("host_max_queue=%d", c.CanQueue))
	} else {
		args = append(args, fmt.Sprintf("max_queue=%d", c.CanQueue))
	}
	if left, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*"); len(left) > 0 {
		return nil, errors.New("scsi_debug is loaded still, with what another case wanted")
	}
	if err := modprobe(ctx, args...); err != nil {
		return nil, err
	}
	d := &disk{remove: func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		for { // udev, say, may still have the disk open
			err := modprobe(ctx, "-r", "scsi_debug")
			if err == nil || sleep(ctx, 100*time.Millisecond) != nil {
				return err
			}
		}
	}}
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		found, _ := filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*:*:*:*/block/*")
		if len(found) > 0 {
			d.name = filepath.Base(found[0])
			d.device = filepath.Base(filepath.Dir(filepath.Dir(found[0])))
			if _, err := os.Stat("/dev/" + d.name); err == nil {
				return d, nil
			}
		}
		if err := sleep(wait, 20*time.Millisecond); err != nil {
			return nil, errors.Join(fmt.Errorf("scsi_debug was loaded, but no disk of it came: %w", err), d.remove())
		}
	}
}

// modprobe runs modprobe, which in a guest is this program. When ctx ends first
// it is left alone: in the kernel, nothing can end it.
func modprobe(ctx context.Context, args ...string) error {
	cmd := exec.Command("modprobe", args...)
	done := make(chan error, 1)
	go func() {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("modprobe %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("modprobe %s: %w", strings.Join(args, " "), context.Cause(ctx))
	}
}
