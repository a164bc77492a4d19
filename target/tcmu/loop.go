package tcmu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// LoopConfig describes a SCSI host of tcm_loop.
type LoopConfig struct {
	// WWN is the target port's name, "naa." and 16 hexadecimal digits. The
	// kernel takes the host for a SAS one.
	WWN string

	// Initiator is the initiator port's, likewise. If empty, it is WWN with one
	// bit changed.
	Initiator string

	// The host's limits. 0 leaves what tcm_loop's module parameters say: 1, and
	// 1024 for the others, unless they were changed.
	HWQueues  int // nr_hw_queues, 1 to 4096: hardware queues, of which the kernel makes no more than it has CPUs
	CanQueue  int // can_queue, 1 to 10240: commands that the host takes at once
	CmdPerLUN int // cmd_per_lun, 1 to 10240: a device's queue depth at first, which the kernel caps at CanQueue
}

// Limits are a SCSI host's, as the kernel shows them in sysfs.
type Limits struct {
	HWQueues  int `json:"nr_hw_queues"`
	CanQueue  int `json:"can_queue"`
	CmdPerLUN int `json:"cmd_per_lun"`
}

var wwnRE = regexp.MustCompile(`^naa\.[0-9a-f]{16}$`)

// maxLoopQueue is BLK_MQ_MAX_DEPTH; blk-mq makes no more tags than that.
const maxLoopQueue = 10240

func (c *LoopConfig) check() error {
	if !wwnRE.MatchString(c.WWN) {
		return fmt.Errorf("tcm_loop: WWN %q: want naa. and 16 hexadecimal digits in lower case", c.WWN)
	}
	if c.Initiator == "" {
		n, err := strconv.ParseUint(c.WWN[4:], 16, 64)
		if err != nil {
			return fmt.Errorf("tcm_loop: WWN %q: %w", c.WWN, err)
		}
		c.Initiator = fmt.Sprintf("naa.%016x", n^1<<35)
	}
	switch {
	case !wwnRE.MatchString(c.Initiator):
		return fmt.Errorf("tcm_loop: initiator name %q: want naa. and 16 hexadecimal digits in lower case", c.Initiator)
	case c.HWQueues < 0 || c.HWQueues > 4096:
		return fmt.Errorf("tcm_loop: %d hardware queues: want 1 to 4096", c.HWQueues)
	case c.CanQueue < 0 || c.CanQueue > maxLoopQueue:
		return fmt.Errorf("tcm_loop: can_queue %d: want 1 to %d", c.CanQueue, maxLoopQueue)
	case c.CmdPerLUN < 0 || c.CmdPerLUN > maxLoopQueue:
		return fmt.Errorf("tcm_loop: cmd_per_lun %d: want 1 to %d", c.CmdPerLUN, maxLoopQueue)
	}
	return nil
}

// Loop is a SCSI host of tcm_loop. It is safe for concurrent use.
type Loop struct {
	e   *Engine
	cfg LoopConfig

	host   int // its number, as in host3
	target string
	limits Limits

	mu    sync.Mutex
	disks map[int]*Disk
}

// CreateLoop makes a SCSI host with the given limits. On an error, nothing is
// left.
//
// The limits are module parameters that tcm_loop reads when it makes a host.
// They are set for that moment, and then get their former values back; other
// processes that use this package wait meanwhile.
func (e *Engine) CreateLoop(ctx context.Context, cfg LoopConfig) (_ *Loop, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l := &Loop{e: e, cfg: cfg, disks: make(map[int]*Disk)}
	made := false
	defer func() {
		if err != nil && made {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, l.Close(undo))
		}
	}()
	if made, err = l.makeHost(ctx); err != nil {
		return nil, err
	}
	if err := e.step(ctx, "make the target port group", func() error { return e.sys.mkdir(l.tpg()) }); err != nil {
		return nil, err
	}
	if err := e.step(ctx, "make the nexus", func() error { return e.sys.write(l.tpg("nexus"), cfg.Initiator) }); err != nil {
		return nil, err
	}
	if l.target, err = e.sys.read(l.tpg("address")); err != nil {
		return nil, fmt.Errorf("tcm_loop: address of the host: %w", err)
	}
	h, _, _ := strings.Cut(l.target, ":")
	if l.host, err = strconv.Atoi(h); err != nil {
		return nil, fmt.Errorf("tcm_loop: address of the host is %q: want host:channel:id", l.target)
	}
	if l.limits, err = l.readLimits(); err != nil {
		return nil, err
	}
	if err := l.checkLimits(); err != nil {
		return nil, err
	}
	return l, nil
}

// checkLimits tells whether the host has the limits that were asked for, as far
// as the kernel doesn't lower them by itself.
func (l *Loop) checkLimits() error {
	got, want := &l.limits, &l.cfg
	for _, p := range []struct {
		name           string
		got, low, want int
	}{
		{"nr_hw_queues", got.HWQueues, 1, want.HWQueues},
		{"can_queue", got.CanQueue, want.CanQueue, want.CanQueue},
		{"cmd_per_lun", got.CmdPerLUN, min(want.CmdPerLUN, got.CanQueue), want.CmdPerLUN},
	} {
		if p.want != 0 && (p.got < p.low || p.got > p.want) {
			return fmt.Errorf("tcm_loop: the host has %s %d and not %d: does another process set tcm_loop's parameters?", p.name, p.got, p.want)
		}
	}
	return nil
}

// makeHost makes the folder that stands for the host, with the parameters set.
// It may be made beside an error.
func (l *Loop) makeHost(ctx context.Context) (made bool, err error) {
	e := l.e
	e.params.Lock()
	defer e.params.Unlock()
	defer e.sys.lock(e.sysfs("module/tcm_loop/parameters"))()
	for _, p := range []struct {
		name string
		v    int
	}{{"nr_hw_queues", l.cfg.HWQueues}, {"can_queue", l.cfg.CanQueue}, {"cmd_per_lun", l.cfg.CmdPerLUN}} {
		if p.v == 0 {
			continue
		}
		path := e.sysfs("module/tcm_loop/parameters", p.name)
		var old string
		if old, err = e.sys.read(path); errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("tcm_loop: this kernel's tcm_loop has no parameter %s (or isn't loaded): %w", p.name, err)
		} else if err != nil {
			return false, fmt.Errorf("tcm_loop: %w", err)
		}
		if err := e.sys.write(path, strconv.Itoa(p.v)); err != nil {
			return false, fmt.Errorf("tcm_loop: set a parameter: %w", err)
		}
		defer func() {
			if werr := e.sys.write(path, old); werr != nil {
				err = errors.Join(err, fmt.Errorf("tcm_loop: set a parameter back: %w", werr))
			}
		}()
	}
	err = e.step(ctx, "make SCSI host "+l.cfg.WWN, func() error { return e.mkdirIn(e.loopback(l.cfg.WWN)) })
	if errors.Is(err, os.ErrExist) {
		return false, fmt.Errorf("tcm_loop: %s %w", e.loopback(l.cfg.WWN), ErrExists)
	}
	return err == nil, err
}

func (l *Loop) tpg(path ...string) string {
	return l.e.loopback(append([]string{l.cfg.WWN, "tpgt_1"}, path...)...)
}

func (l *Loop) readLimits() (lim Limits, err error) {
	for _, p := range []struct {
		name string
		v    *int
	}{{"nr_hw_queues", &lim.HWQueues}, {"can_queue", &lim.CanQueue}, {"cmd_per_lun", &lim.CmdPerLUN}} {
		path := l.e.sysfs("class/scsi_host", fmt.Sprintf("host%d", l.host), p.name)
		s, err := l.e.sys.read(path)
		if err != nil {
			return lim, fmt.Errorf("tcm_loop: limits of the host: %w", err)
		}
		if *p.v, err = strconv.Atoi(s); err != nil {
			return lim, fmt.Errorf("tcm_loop: %s: %w", path, err)
		}
	}
	return lim, nil
}

// Host is the SCSI host's number.
func (l *Loop) Host() int { return l.host }

// WWN is the target port's name.
func (l *Loop) WWN() string { return l.cfg.WWN }

// Initiator is the initiator port's name.
func (l *Loop) Initiator() string { return l.cfg.Initiator }

// Limits are what the kernel made of the limits that were asked for.
func (l *Loop) Limits() Limits { return l.limits }

// Disk is a LUN of a loop, as the kernel sees it.
type Disk struct {
	LUN     int    `json:"lun"`
	HCTL    string `json:"hctl"`    // "3:0:1:0"
	Block   string `json:"block"`   // "/dev/sda"; empty if the unit is not a disk
	Generic string `json:"generic"` // "/dev/sg0"; empty without the sg driver

	loop *Loop
	dev  *Device
}

// Attach makes dev a LUN of the host, 0 to 255, and waits until the kernel has
// found the disk and its block device is there.
func (l *Loop) Attach(ctx context.Context, dev *Device, n int) (_ *Disk, err error) {
	if n < 0 || n > 255 {
		return nil, fmt.Errorf("tcm_loop: LUN %d: want 0 to 255", n)
	}
	e := l.e
	d := &Disk{LUN: n, HCTL: fmt.Sprintf("%s:%d", l.target, n), loop: l, dev: dev}
	l.mu.Lock()
	if l.disks[n] != nil {
		l.mu.Unlock()
		return nil, fmt.Errorf("tcm_loop: LUN %d of %s %w", n, l.cfg.WWN, ErrExists)
	}
	l.disks[n] = d
	l.mu.Unlock()
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, d.Detach(undo))
		}
	}()
	dir := d.dir()
	if err := e.step(ctx, fmt.Sprintf("make LUN %d", n), func() error { return e.sys.mkdir(dir) }); err != nil {
		return nil, err
	}
	// The kernel looks for the device while it makes the link.
	if err := e.step(ctx, fmt.Sprintf("link LUN %d to device %s", n, dev.Name()), func() error {
		return e.sys.symlink(dev.dir, filepath.Join(dir, dev.Name()))
	}); err != nil {
		return nil, err
	}
	if err := d.find(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Disk) dir() string { return d.loop.tpg("lun", fmt.Sprintf("lun_%d", d.LUN)) }

func (d *Disk) sysfs(path ...string) string {
	return d.loop.e.sysfs(append([]string{"class/scsi_device", d.HCTL, "device"}, path...)...)
}

// find waits for the device nodes.
func (d *Disk) find(ctx context.Context) error {
	sys := d.loop.e.sys
	typ, err := sys.read(d.sysfs("type"))
	if err != nil {
		return fmt.Errorf("tcm_loop: the kernel didn't take LUN %d of host%d as a SCSI device; it sent %d commands, see its log: %w",
			d.LUN, d.loop.host, d.dev.Stats().Commands, err)
	}
	dev := d.loop.e.opts.Dev
	return poll(ctx, fmt.Sprintf("tcm_loop: device nodes of SCSI device %s", d.HCTL), func() error {
		if g, err := sys.list(d.sysfs("scsi_generic")); err == nil && len(g) > 0 {
			d.Generic = filepath.Join(dev, g[0])
		}
		// Disks, also write-once, optical and zoned ones (SPC-5 table 150).
		if !slices.Contains([]string{"0", "4", "7", "14", "20"}, typ) {
			return nil
		}
		b, err := sys.list(d.sysfs("block"))
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return errors.New("no block device yet")
		}
		d.Block = filepath.Join(dev, b[0])
		return bounded(ctx, func() error { return sys.openBlock(d.Block) })
	})
}

// poll calls f until it is done, or ctx is, or 30 s are over.
func poll(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (%w)", what, err, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// QueueDepth reads the device's queue depth.
func (d *Disk) QueueDepth() (int, error) {
	s, err := d.loop.e.sys.read(d.sysfs("queue_depth"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(s)
}

// Device is the TCMU device behind the disk.
func (d *Disk) Device() *Device { return d.dev }

// Detach removes the disk from the kernel. It waits for the commands that the
// kernel has under way; see [Device.Offline].
func (d *Disk) Detach(ctx context.Context) error {
	l := d.loop
	if err := l.e.removeLUN(ctx, d.dir()); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.disks, d.LUN)
	return nil
}

// Close detaches the disks that are still attached and removes the host.
func (l *Loop) Close(ctx context.Context) error {
	l.mu.Lock()
	disks := make([]*Disk, 0, len(l.disks))
	for _, d := range l.disks {
		disks = append(disks, d)
	}
	l.mu.Unlock()
	slices.SortFunc(disks, func(a, b *Disk) int { return b.LUN - a.LUN })
	for _, d := range disks {
		if err := d.Detach(ctx); err != nil {
			return err
		}
	}
	return l.e.removeHost(ctx, l.cfg.WWN)
}

// removeLUN removes a LUN's folder in configfs, and before it the link to the
// device. What isn't there is fine.
func (e *Engine) removeLUN(ctx context.Context, dir string) error {
	names, err := e.sys.list(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("tcm_loop: %w", err)
	}
	for _, n := range names {
		link := filepath.Join(dir, n)
		if _, err := e.sys.readlink(link); err != nil {
			continue // an attribute
		}
		if err := e.step(ctx, "unlink a LUN", func() error { return e.sys.unlink(link) }); err != nil {
			return err
		}
	}
	return e.step(ctx, "remove a LUN", func() error { return e.sys.rmdir(dir) })
}

// removeHost removes a host that has no LUNs.
func (e *Engine) removeHost(ctx context.Context, wwn string) error {
	tpgs, err := e.sys.list(e.loopback(wwn))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("tcm_loop: %w", err)
	}
	for _, t := range tpgs {
		if !strings.HasPrefix(t, "tpgt_") {
			continue
		}
		if err := e.step(ctx, "remove the target port group", func() error { return e.sys.rmdir(e.loopback(wwn, t)) }); err != nil {
			return err
		}
	}
	err = e.step(ctx, "remove SCSI host "+wwn, func() error { return e.sys.rmdir(e.loopback(wwn)) })
	if err == nil {
		e.sys.rmdir(e.loopback()) // stays if other hosts are in it
	}
	return err
}
