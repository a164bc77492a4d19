// Package attach attaches the LUNs of a [lab.Lab] to this kernel, through
// [tcmu], and takes them off again.
package attach

import (
	"context"
	"errors"
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
// The order is [Attachment.Add], and [Attachment.Detach] of some, then
// [Attachment.WaitUnused] if one is patient, and [Attachment.Remove] until it
// succeeds, also after an Add that failed; [Attachment.Offline] helps it when
// commands don't end.
type Attachment struct {
	engine  *tcmu.Engine
	hosts   []*host
	units   []*unit
	failed  chan error
	watches sync.WaitGroup
}

// host is the one that a target is.
type host struct {
	*tcmu.Loop
	target string
	config tcmu.LoopConfig
	nexus  *lun.Nexus
}

// unit is a device and, if the kernel has taken it, a disk.
type unit struct {
	host   *host
	of     *lab.Unit
	device *tcmu.Device
	disk   *tcmu.Disk
	row    LUN
	gone   chan struct{} // closed with the disk's end
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
	return &Attachment{engine: e, failed: make(chan error, 1)}
}

// fullRings is how many devices have rings of the size that the kernel chooses.
const fullRings = 8

// Add makes of each unit a disk on the host of its target, and the host if it isn't
// there. On an error, what was attached before is still there.
func (a *Attachment) Add(ctx context.Context, units ...*lab.Unit) error {
	var ringMB uint32
	if len(a.units)+len(units) > fullRings {
		ringMB = 1 // a ring takes up kernel memory, 8 MiB if nothing is said
	}
	for _, u := range units {
		h, err := a.hostOf(ctx, u.Target)
		if err != nil {
			return err
		}
		if err := a.add(ctx, h, u, ringMB); err != nil {
			return err
		}
	}
	return nil
}

func (a *Attachment) hostOf(ctx context.Context, t *lab.Target) (*host, error) {
	for _, h := range a.hosts {
		if h.target == t.Name {
			return h, nil
		}
	}
	config := LoopConfig(t)
	loop, err := a.engine.CreateLoop(ctx, config)
	if err != nil {
		return nil, err
	}
	h := &host{Loop: loop, target: t.Name, config: config}
	a.hosts = append(a.hosts, h)
	address, err := strconv.ParseUint(strings.TrimPrefix(loop.Initiator(), "naa."), 16, 64)
	if err != nil {
		return nil, err
	}
	h.nexus = &lun.Nexus{Initiator: tcmu.SASTransportID(address), TargetPort: 1, Name: loop.Initiator() + "," + loop.WWN()}
	return h, nil
}

func (a *Attachment) add(ctx context.Context, h *host, u *lab.Unit, ringMB uint32) (err error) {
	x := &unit{host: h, of: u, gone: make(chan struct{}), row: LUN{
		Target: h.target, WWN: h.WWN(), Host: h.Host(), Limits: h.Limits(),
		Size: u.Blocks() * uint64(u.BlockSize()), BlockSize: u.BlockSize(), Serial: u.Serial(),
	}}
	x.device, err = a.engine.Create(ctx, tcmu.Config{
		Name: fmt.Sprintf("%s-%d", h.target, u.Config.Number),
		Size: x.row.Size, BlockSize: uint32(x.row.BlockSize), Nexus: h.nexus, RingMB: ringMB,
	}, u.Faults)
	if err != nil {
		return err
	}
	a.units = append(a.units, x)
	if x.disk, err = h.Attach(ctx, x.device, u.Config.Number); err != nil {
		return err
	}
	a.watches.Go(func() { a.watch(x) })
	x.row.Disk = *x.disk
	x.row.QueueDepth, err = x.disk.QueueDepth()
	return err
}

// watch tells when a unit isn't served any more.
func (a *Attachment) watch(u *unit) {
	select {
	case <-u.device.Done():
		select {
		case a.failed <- u.device.Err():
		default:
		}
	case <-u.gone:
	}
}

// LUNs are those that are attached, as they are now.
func (a *Attachment) LUNs() []LUN {
	var list []LUN
	for _, u := range a.units {
		if u.disk == nil {
			continue
		}
		row := u.row
		row.Size = u.of.Blocks() * uint64(row.BlockSize)
		if n, err := u.disk.QueueDepth(); err == nil {
			row.QueueDepth = n
		}
		list = append(list, row)
	}
	return list
}

// CanBecome returns why what is attached can't come to be what a change makes of
// it: a disk is to go that is in use, or a host to have other limits.
func (a *Attachment) CanBecome(c *lab.Config, removed []*lab.Unit) error {
	var errs []error
	for _, h := range a.hosts {
		for _, t := range c.Targets {
			if t.Name == h.target && LoopConfig(t) != h.config {
				errs = append(errs, fmt.Errorf("%s:1:1: the limits of target %s can't change while it is attached: its host was made with them; restart for that", c.Path, t.Name))
			}
		}
	}
	for _, r := range removed {
		if u := a.unitOf(r); u != nil && u.row.Block != "" && claimed(u.row.Block) {
			errs = append(errs, fmt.Errorf("%s:1:1: LUN %d of %s can't go: %s is in use (mounted, or part of a volume); free it", c.Path, r.Config.Number, r.Target.Name, u.row.Block))
		}
	}
	return errors.Join(errs...)
}

func (a *Attachment) unitOf(u *lab.Unit) *unit {
	for _, x := range a.units {
		if x.of.Faults == u.Faults { // a reload makes another lab.Unit of it
			return x
		}
	}
	return nil
}

// Detach takes a unit off the kernel, which waits for commands in flight. They are
// failed when they don't end by themselves in some time.
func (a *Attachment) Detach(ctx context.Context, u *lab.Unit, patience time.Duration) error {
	x := a.unitOf(u)
	if x == nil {
		return nil // it never came to be attached
	}
	step, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := a.detach(step, x)
	if err == nil || step.Err() == nil {
		return err
	}
	x.device.Offline()
	return a.detach(ctx, x)
}

func (a *Attachment) detach(ctx context.Context, u *unit) error {
	if u.disk != nil {
		if err := u.disk.Detach(ctx); err != nil {
			return err
		}
		u.disk = nil
		close(u.gone)
	}
	if err := u.device.Close(ctx); err != nil {
		return err
	}
	a.units = slices.DeleteFunc(a.units, func(x *unit) bool { return x == u })
	return nil
}

// Failed gives an error when a LUN that is attached isn't served any more.
func (a *Attachment) Failed() <-chan error { return a.failed }

// WaitUnused waits until no disk is mounted or otherwise claimed, or ctx ends.
// It calls tell with the path of each that it has to wait for.
func (a *Attachment) WaitUnused(ctx context.Context, tell func(block string)) {
	for _, u := range a.units {
		for told := false; u.row.Block != "" && claimed(u.row.Block); told = true {
			if !told {
				tell(u.row.Block)
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
	for _, u := range a.units {
		u.device.Offline()
	}
}

// Remove takes everything off the kernel. The kernel waits for commands in
// flight. What is left when ctx ends, the next Remove goes on with.
func (a *Attachment) Remove(ctx context.Context) error {
	for len(a.units) > 0 {
		if err := a.detach(ctx, a.units[len(a.units)-1]); err != nil {
			return err
		}
	}
	a.watches.Wait()
	return a.Prune(ctx, nil)
}

// Prune removes the hosts of no target of these. They have to have no disks.
func (a *Attachment) Prune(ctx context.Context, targets []*lab.Target) error {
	for i, h := range slices.Backward(a.hosts) {
		if slices.ContainsFunc(targets, func(t *lab.Target) bool { return t.Name == h.target }) {
			continue
		}
		if err := h.Close(ctx); err != nil {
			return err
		}
		a.hosts = slices.Delete(a.hosts, i, i+1)
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
