// Package attach attaches the LUNs of a [lab.Lab] to this kernel, through
// [tcmu], and takes them off again.
package attach

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/target/tcmu"
)

// Attachment is what is attached, in the order in which it was. One goroutine
// calls its methods.
//
// The order is [Attachment.Attach], once, then [Attachment.WaitUnused] if one is
// patient, and [Attachment.Remove] until it succeeds, also after an Attach that
// failed; [Attachment.Offline] helps it when commands don't end.
type Attachment struct {
	engine  *tcmu.Engine
	loops   []*tcmu.Loop
	devices []*tcmu.Device
	luns    []LUN
	ringMB  uint32
	failed  chan error
	stop    chan struct{}
	once    sync.Once
	watches sync.WaitGroup
}

// LUN is one that is attached.
type LUN struct {
	Target string `json:"target"`
	WWN    string `json:"wwn"`
	Host   int    `json:"host"`
	tcmu.Disk
	Size       uint64 `json:"size"` // in bytes
	BlockSize  int    `json:"block_size"`
	Serial     string `json:"serial"`
	QueueDepth int    `json:"queue_depth"`
	tcmu.Limits
}

// New makes one of nothing. The engine has to be open until all is removed.
func New(e *tcmu.Engine) *Attachment {
	return &Attachment{engine: e, failed: make(chan error, 1), stop: make(chan struct{})}
}

// Attach makes a host for each target, and of each LUN a disk on it. On an error,
// what was attached before is still there.
func (a *Attachment) Attach(ctx context.Context, units *lab.Lab) error {
	if len(units.LUNs) > 8 {
		a.ringMB = 1 // a ring takes up kernel memory, 8 MiB if nothing is said
	}
	for _, t := range units.Config.Targets {
		loop, err := a.engine.CreateLoop(ctx, LoopConfig(t))
		if err != nil {
			return err
		}
		a.loops = append(a.loops, loop)
		address, err := strconv.ParseUint(strings.TrimPrefix(loop.Initiator(), "naa."), 16, 64)
		if err != nil {
			return err
		}
		nexus := &lun.Nexus{Initiator: tcmu.SASTransportID(address), TargetPort: 1, Name: loop.Initiator() + "," + loop.WWN()}
		for _, u := range units.Of(t) {
			if err := a.attachUnit(ctx, loop, nexus, u); err != nil {
				return err
			}
		}
	}
	for _, d := range a.devices {
		a.watches.Go(func() {
			select {
			case <-d.Done():
				select {
				case a.failed <- d.Err():
				default:
				}
			case <-a.stop:
			}
		})
	}
	return nil
}

func (a *Attachment) attachUnit(ctx context.Context, loop *tcmu.Loop, nexus *lun.Nexus, u *lab.Unit) error {
	o := u.Disk.Options()
	row := LUN{
		Target: u.Target.Name, WWN: loop.WWN(), Host: loop.Host(), Limits: loop.Limits(),
		Size: u.Disk.Blocks() * uint64(o.BlockSize), BlockSize: o.BlockSize, Serial: o.Serial,
	}
	dev, err := a.engine.Create(ctx, tcmu.Config{
		Name: fmt.Sprintf("%s-%d", u.Target.Name, u.Config.Number),
		Size: row.Size, BlockSize: uint32(o.BlockSize), Nexus: nexus, RingMB: a.ringMB,
	}, u.Faults)
	if err != nil {
		return err
	}
	a.devices = append(a.devices, dev)
	disk, err := loop.Attach(ctx, dev, u.Config.Number)
	if err != nil {
		return err
	}
	row.Disk = *disk
	if row.QueueDepth, err = disk.QueueDepth(); err != nil {
		return err
	}
	a.luns = append(a.luns, row)
	return nil
}

// LUNs are those that are attached.
func (a *Attachment) LUNs() []LUN { return a.luns }

// Failed gives an error when a LUN that is attached isn't served any more.
func (a *Attachment) Failed() <-chan error { return a.failed }

// WaitUnused waits until no disk is mounted or otherwise claimed, or ctx ends.
// It calls tell with the path of each that it has to wait for.
func (a *Attachment) WaitUnused(ctx context.Context, tell func(block string)) {
	for _, u := range a.luns {
		for told := false; u.Block != "" && claimed(u.Block); told = true {
			if !told {
				tell(u.Block)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

// Offline fails the commands that are in flight, and all that come.
func (a *Attachment) Offline() {
	for _, d := range a.devices {
		d.Offline()
	}
}

// Remove takes everything off the kernel. The kernel waits for commands in
// flight. What is left when ctx ends, the next Remove goes on with.
func (a *Attachment) Remove(ctx context.Context) error {
	a.once.Do(func() { close(a.stop) })
	a.watches.Wait()
	for len(a.loops) > 0 {
		last := len(a.loops) - 1
		if err := a.loops[last].Close(ctx); err != nil {
			return err
		}
		a.loops = a.loops[:last]
	}
	for _, d := range slices.Backward(a.devices) {
		if err := d.Close(ctx); err != nil {
			return err
		}
		a.devices = a.devices[:len(a.devices)-1]
	}
	return nil
}

// LoopConfig is the host of a target. Its name is made of the target's if it has
// none.
func LoopConfig(t *lab.Target) tcmu.LoopConfig {
	c := tcmu.LoopConfig{
		WWN: t.Loop.WWN, Initiator: t.Loop.Initiator,
		CanQueue: t.Limits.CanQueue, CmdPerLUN: t.Limits.CmdPerLUN, HWQueues: t.Limits.HWQueues,
	}
	if c.WWN == "" {
		// 28 bits of NAA and company, one for the initiator, which has it set, and
		// 35 that the target's name makes.
		h := fnv.New64a()
		io.WriteString(h, t.Name)
		c.WWN = fmt.Sprintf("naa.5001405%09x", h.Sum64()&(1<<35-1))
	}
	return c
}

// claimed tells whether someone has the block device, or a partition of it, for
// himself alone.
func claimed(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err == unix.EBUSY
}
