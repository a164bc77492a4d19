package lab

import (
	"errors"
	"fmt"

	"lunlab/lun"
	"lunlab/lun/fault"
	"lunlab/lun/store"
	"lunlab/lun/store/file"
	"lunlab/lun/store/mem"
	"lunlab/lun/store/null"
)

// Lab is a configuration whose LUNs are open.
type Lab struct {
	Config *Config
	LUNs   []*Unit // in the order of the file
}

// Unit is an open LUN.
type Unit struct {
	Target *Target
	Config *LUN
	Disk   *lun.Disk

	// Faults is what commands go to: the disk, behind its faults.
	Faults *fault.Unit
}

// Build opens all LUNs. On an error, none is open.
//
// abort is called when a PREEMPT AND ABORT takes the nexus off the LUN: all its
// tasks for it are to be aborted. It may be nil where a LUN has but one nexus.
func (c *Config) Build(abort func(t *Target, number int, n *lun.Nexus)) (*Lab, error) {
	l := &Lab{Config: c}
	for _, t := range c.Targets {
		copies := t.copies()
		for _, u := range t.LUNs {
			disk, err := u.open(copies, func(n *lun.Nexus) {
				if abort != nil {
					abort(t, u.Number, n)
				}
			})
			if err != nil {
				err = fmt.Errorf("%s:%d:%d: LUN %d of %s: %w", c.Path, u.Store.at.line, u.Store.at.column, u.Number, t.Name, err)
				return nil, errors.Join(err, l.Close())
			}
			x := &Unit{Target: t, Config: u, Disk: disk, Faults: fault.New(disk)}
			l.LUNs = append(l.LUNs, x)
			for _, r := range u.Faults {
				if _, err := x.Faults.Add(r); err != nil {
					return nil, errors.Join(err, l.Close())
				}
			}
		}
	}
	return l, nil
}

// copies is what EXTENDED COPY reaches from each LUN: all of its target, but
// only itself where masks hide some from an initiator, which could name what it
// doesn't see.
func (t *Target) copies() *lun.CopySet {
	for _, a := range t.ISCSI.Access {
		if a.LUNs != nil {
			return nil
		}
	}
	return new(lun.CopySet)
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
		if err := u.Disk.Close(); err != nil {
			errs = append(errs, fmt.Errorf("LUN %d of %s: %w", u.Config.Number, u.Target.Name, err))
		}
	}
	l.LUNs = nil
	return errors.Join(errs...)
}

func (u *LUN) open(copies *lun.CopySet, abort func(*lun.Nexus)) (*lun.Disk, error) {
	s, err := u.Store.open(u.ReadOnly)
	if err != nil {
		return nil, err
	}
	o := lun.DiskOptions{
		BlockSize: u.BlockSize, PhysicalExponent: u.PhysicalExponent, LowestAligned: u.LowestAligned,
		Vendor: u.Vendor, Product: u.Product, Revision: u.Revision, Serial: u.Serial, NAA: u.NAA,
		Thin: u.Thin, ReadOnly: u.ReadOnly, WriteThrough: u.WriteThrough, Removable: u.Removable,
		RotationRate: u.RotationRate, EraseTime: u.EraseTime, AbortTasks: abort, Copies: copies,
		UnmapBy: u.UnmapBy, Protectable: u.Protectable, Protection: u.Protection,
	}
	if o.BlockSize == 0 {
		o.BlockSize = 512
	}
	o.MaxTransfer = uint32(u.MaxTransfer / uint64(o.BlockSize))
	if o.Product == "" && u.Store.Kind == Memory {
		o.Product = "memory"
	}
	d, err := lun.NewDisk(s, o)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return d, nil
}

func (s *Store) open(readOnly bool) (store.Store, error) {
	switch s.Kind {
	case Memory:
		return mem.NewLimited(s.Size, s.Limit)
	case File:
		return file.Open(s.Path, file.Options{Size: s.Size, ReadOnly: readOnly, Direct: s.Direct})
	case Null:
		return null.New(s.Size)
	}
	return nil, fmt.Errorf("no store of kind %q", s.Kind)
}
