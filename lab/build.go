package lab

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"lunlab/ata/sat"
	"lunlab/lun"
	"lunlab/lun/fault"
	"lunlab/lun/store/mem"
)

// Lab is a configuration whose LUNs are open.
type Lab struct {
	Config *Config
	LUNs   []*Unit // in the order of the file; replaced, never changed, under mu

	mu    sync.Mutex
	rooms map[string]*mem.Room    // of the pools, by name
	sets  map[string]*lun.CopySet // of the targets, by name
}

// Unit is an open LUN.
type Unit struct {
	Target *Target
	Config *LUN
	Disk   *lun.Disk // nil for an ATA drive
	ATA    *sat.Unit // nil for a disk

	// Faults is what commands go to: the disk, behind its faults.
	Faults *fault.Unit

	lies       *lies
	configured []uint64 // numbers of the rules that the configuration put in force
}

// Build opens all LUNs. On an error, none is open.
//
// abort is called when a PREEMPT AND ABORT takes the nexus off the LUN: all its
// tasks for it are to be aborted. It may be nil where a LUN has but one nexus.
func (c *Config) Build(abort func(t *Target, number int, n *lun.Nexus)) (*Lab, error) {
	l := &Lab{Config: c, rooms: map[string]*mem.Room{}, sets: map[string]*lun.CopySet{}}
	for _, p := range c.Pools {
		l.rooms[p.Name] = newRoom(p.Size, p.Temporary)
	}
	for _, t := range c.Targets {
		for _, u := range t.LUNs {
			x, err := l.open(c, t, u, abort)
			if err != nil {
				return nil, errors.Join(err, l.Close())
			}
			l.LUNs = append(l.LUNs, x)
		}
	}
	return l, nil
}

// copies are the disks that third-party copies reach from those of a target: all of
// it. Which of them they reach for an initiator, its nexus says.
func (l *Lab) copies(t *Target) *lun.CopySet {
	if l.sets[t.Name] == nil {
		l.sets[t.Name] = new(lun.CopySet)
	}
	return l.sets[t.Name]
}

// ErrNoCache says that a LUN has nothing to lose when the power goes.
var ErrNoCache = errors.New("the LUN has no cache: its store has no key cache")

// CutPower has the LUN lose what its cache holds, as a disk does whose power goes
// and comes back: what was not flushed or written with FUA, but for the blocks
// that survives tells of by their offset in the store (see [cache.Store.PowerCut]).
// Initiators learn of it by the unit attention POWER ON OCCURRED, and everything
// volatile is as at first. Commands that run meanwhile may be lost or not.
func (u *Unit) CutPower(survives func(off int64) bool) error {
	if u.lies.cache == nil {
		return ErrNoCache
	}
	if u.ATA != nil {
		return u.ATA.PowerCycle(func() error { return u.lies.cache.PowerCut(survives) })
	}
	return u.Disk.LosePower(func() error { return u.lies.cache.PowerCut(survives) })
}

// Units returns the LUNs. Unlike the field LUNs, it can be used while the lab is
// reloaded.
func (l *Lab) Units() []*Unit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.LUNs
}

// Of returns the units of a target.
func (l *Lab) Of(t *Target) []*Unit {
	var out []*Unit
	for _, u := range l.LUNs {
		if u.Target == t {
			out = append(out, u)
		}
	}
	return out
}

// Close closes all LUNs, and flushes what they lie on.
func (l *Lab) Close() error {
	var errs []error
	for _, u := range l.LUNs {
		errs = append(errs, u.Close())
	}
	l.LUNs = nil
	return errors.Join(errs...)
}

// unit is what the LUN is behind its faults.
func (u *Unit) unit() interface {
	lun.Unit
	Close() error
} {
	if u.ATA != nil {
		return u.ATA
	}
	return u.Disk
}

// Close closes the LUN, and flushes what it lies on.
func (u *Unit) Close() error {
	if err := u.unit().Close(); err != nil {
		return fmt.Errorf("LUN %d of %s: %w", u.Config.Number, u.Target.Name, err)
	}
	return nil
}

// open opens a LUN. abort is that of Build.
func (l *Lab) open(c *Config, t *Target, u *LUN, abort func(*Target, int, *lun.Nexus)) (*Unit, error) {
	fail := func(err error) (*Unit, error) {
		return nil, fmt.Errorf("%s:%d:%d: LUN %d of %s: %w", c.Path, u.Store.at.line, u.Store.at.column, u.Number, t.Name, err)
	}
	s, err := u.Store.open(u.ReadOnly, l.rooms)
	if err != nil {
		return fail(err)
	}
	x := &Unit{Target: t, Config: u, lies: s}
	if u.ATA != nil {
		if x.ATA, err = u.openATA(s.top); err != nil {
			return fail(errors.Join(err, s.top.Close()))
		}
		return x.begin(fail)
	}
	o := u.options(t)
	o.Ports = c.ports(t)
	o.Copies, o.LUN = l.copies(t), uint16(u.Number)
	o.AbortTasks = func(n *lun.Nexus) {
		if abort != nil {
			abort(t, u.Number, n)
		}
	}
	if x.Disk, err = lun.NewDisk(s.top, o); err != nil {
		return fail(errors.Join(err, s.top.Close()))
	}
	return x.begin(fail)
}

// begin puts faults in front of a unit that is open.
func (u *Unit) begin(fail func(error) (*Unit, error)) (*Unit, error) {
	u.Faults = fault.New(u.unit())
	if err := u.addFaults(); err != nil {
		return fail(errors.Join(err, u.unit().Close()))
	}
	return u, nil
}

// addFaults puts the rules of the configuration in force, after the others.
func (u *Unit) addFaults() error {
	u.configured = nil
	for _, r := range u.Config.Faults {
		id, err := u.Faults.Add(r)
		if err != nil {
			return err
		}
		u.configured = append(u.configured, id)
	}
	return nil
}

// ports are the relative target port identifiers of a target. That of tcm_loop and
// vhost-user is 1.
func (c *Config) ports(t *Target) []uint16 {
	ports := []uint16{1}
	for _, p := range c.ISCSI.Listen {
		if in := t.ISCSI.PortalGroups; len(in) == 0 || slices.Contains(in, p.Group) {
			ports = append(ports, p.Group)
		}
	}
	return ports
}

// options are those of the disk that a LUN of t is.
func (u *LUN) options(t *Target) lun.DiskOptions {
	o := lun.DiskOptions{
		BlockSize: u.BlockSize, PhysicalExponent: u.PhysicalExponent, LowestAligned: u.LowestAligned,
		Vendor: u.Vendor, Product: u.Product, Revision: u.Revision, Serial: u.Serial, NAA: u.NAA, EUI: u.EUI,
		Thin: u.Thin, UnmapBy: u.UnmapBy, Unzeroed: u.Unzeroed, SoftThreshold: u.SoftThreshold,
		Protectable: u.Protectable, Protection: u.Protection, ReadOnly: u.ReadOnly, WriteThrough: u.WriteThrough,
		Removable: u.Removable, RotationRate: u.RotationRate, FormFactor: u.FormFactor, EraseTime: u.EraseTime, ShortCommands: u.ShortCommands, Streams: u.Streams,
	}
	if o.BlockSize == 0 {
		o.BlockSize = 512
	}
	o.MaxTransfer = uint32(u.MaxTransfer / uint64(o.BlockSize))
	if o.Product == "" && u.Store.Kind == Memory {
		o.Product = "memory"
	}
	if z := u.Zones; z != nil {
		o.Zones = &lun.ZoneOptions{Size: uint64(z.Size) / uint64(o.BlockSize), Conventional: z.Conventional, MaxOpen: z.MaxOpen, HostAware: z.HostAware}
	}
	if a := u.alua(t); a != nil {
		o.PortGroups, o.ExplicitAccess = a.Groups, a.Explicit
	}
	if u.State != "" {
		o.Memory = lun.StateFile(u.State)
	}
	return o
}

// alua is that of a LUN of t, nil if there is none.
func (u *LUN) alua(t *Target) *ALUA {
	if u.ATA != nil {
		return nil // its ports are all alike
	}
	if u.ALUA != nil {
		return u.ALUA
	}
	return t.ALUA
}
