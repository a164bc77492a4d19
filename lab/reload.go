package lab

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"

	"lunlab/lun"
	"lunlab/lun/fault"
	"lunlab/lun/store"
	"lunlab/lun/store/mem"
)

// Change is what a reload of a lab comes to, until it is taken into use.
type Change struct {
	Added   []*Unit // open, and on no target yet
	Removed []*Unit // to be closed by [Unit.Close] when they are on no target any more
	Kept    []*Unit // as the new configuration has them

	lab *Lab
	to  *Config
	old map[*Unit]*Unit // what each of Kept was before

	undo []func() error // makes stores as large as they were, and forgets pools
}

// LoadOver is [Load] for a file that is to take the place of the lab's: files that
// are in use may have other sizes than it says.
func (l *Lab) LoadOver(path string) (*Config, error) {
	running := map[string]bool{}
	for _, u := range l.LUNs {
		if u.Config.Store.Kind == File {
			running[u.Config.Store.Path] = true
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseOver(path, b, running)
}

// Prepare opens what c has and the lab doesn't, and makes the stores grow that
// have to. On an error all is as before; it names each place in c that can't come
// about while the LUNs are in use. Else [Change.Commit] or [Change.Undo] has to
// follow. abort is that of [Config.Build].
func (l *Lab) Prepare(c *Config, abort func(t *Target, number int, n *lun.Nexus)) (_ *Change, err error) {
	ch := &Change{lab: l, to: c, old: map[*Unit]*Unit{}}
	type place struct {
		target string
		number int
	}
	before := map[place]*Unit{}
	for _, u := range l.LUNs {
		before[place{u.Target.Name, u.Config.Number}] = u
	}
	type addition struct {
		t *Target
		u *LUN
	}
	var added []addition
	errs := l.checkWhole(c)
	for _, t := range c.Targets {
		for _, u := range t.LUNs {
			p := place{t.Name, u.Number}
			x := before[p]
			if x == nil {
				added = append(added, addition{t, u})
				continue
			}
			delete(before, p)
			kept := *x
			kept.Target, kept.Config = t, u
			ch.Kept = append(ch.Kept, &kept)
			ch.old[&kept] = x
			if err := x.canBecome(t, u); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d:%d: LUN %d of %s: %w", c.Path, u.at.line, u.at.column, u.Number, t.Name, err))
			}
		}
	}
	for _, u := range l.LUNs { // in their order
		if before[place{u.Target.Name, u.Config.Number}] == u {
			ch.Removed = append(ch.Removed, u)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ch.Undo())
		}
	}()
	for _, p := range c.Pools {
		if l.rooms[p.Name] == nil {
			l.rooms[p.Name] = newRoom(p.Size, p.Temporary)
			ch.undo = append(ch.undo, func() error { delete(l.rooms, p.Name); return nil })
		}
	}
	for _, a := range added {
		x, err := l.open(c, a.t, a.u, abort)
		if err != nil {
			return nil, err
		}
		ch.Added = append(ch.Added, x)
	}
	for _, u := range ch.Kept {
		if u.grows(ch.old[u].Config) {
			r, was := u.lies.top.(store.Resizer), u.lies.top.Size()
			ch.undo = append(ch.undo, func() error { return r.Resize(was) })
			if err := r.Resize(u.Config.Store.Size); err != nil {
				return nil, fmt.Errorf("%s:%d:%d: LUN %d of %s: %w", c.Path, u.Config.at.line, u.Config.at.column, u.Config.Number, u.Target.Name, err)
			}
		}
	}
	return ch, nil
}

// checkWhole finds what has to be the same for all targets.
func (l *Lab) checkWhole(c *Config) (errs []error) {
	fixed := func(what string) {
		errs = append(errs, fmt.Errorf("%s:1:1: %s can't change while it is in use; restart for that", c.Path, what))
	}
	if !reflect.DeepEqual(l.Config.ISCSI, c.ISCSI) {
		fixed("the section iscsi")
	}
	for _, t := range c.Targets {
		for _, o := range l.Config.Targets {
			if o.Name == t.Name && o.Loop != t.Loop {
				fixed("loop of target " + t.Name)
			}
		}
	}
	return errs
}

// grows tells whether the store has to become larger than it was configured.
func (u *Unit) grows(old *LUN) bool {
	return u.Config.Store.Size != old.Store.Size && u.Config.Store.Size > 0
}

// canBecome returns why a unit can't come to be configured so while it is in use.
func (u *Unit) canBecome(t *Target, to *LUN) error {
	a, b := *u.Config, *to
	if b.Store.Size != a.Store.Size && b.Store.Size > 0 {
		if b.Store.Size < u.lies.top.Size() {
			return fmt.Errorf("it can't become smaller, from %d bytes to %d, while it is in use", u.lies.top.Size(), b.Store.Size)
		}
		if u.ATA != nil {
			return errors.New("an ATA drive can't grow")
		}
		if err := u.Disk.CanGrow(); err != nil {
			return err
		}
	}
	if n := len(u.Faults.Rules()) - len(u.configured) + len(to.Faults); n > fault.MaxRules && !sameRules(u.Config, to) {
		return fault.ErrTooMany
	}
	if u.Disk != nil {
		if err := u.Disk.CheckSettings(u.settings(to)); err != nil {
			return err
		}
	}
	if (a.Store.Limit == 0) != (b.Store.Limit == 0) {
		return errors.New("a limit can't come or go while it is in use")
	}
	if err := sameGroups(u.Config.alua(u.Target), to.alua(t)); err != nil {
		return err
	}
	// What may differ, and was looked at.
	b.at, b.Store.at, b.Store.Size, b.ALUA = a.at, a.Store.at, a.Store.Size, a.ALUA
	b.Store.Limit, b.Store.Temporary = a.Store.Limit, a.Store.Temporary
	if u.Disk != nil {
		b.Revision, b.ReadOnly, b.WriteThrough, b.SoftThreshold = a.Revision, a.ReadOnly, a.WriteThrough, a.SoftThreshold
	}
	if a.Zones != nil && b.Zones != nil {
		z := *b.Zones
		z.at = a.Zones.at
		b.Zones = &z
	}
	if a.Store.Kind == File && a.ReadOnly != to.ReadOnly {
		return errors.New("read_only of a file can't change while it is in use: it is opened so")
	}
	av, bv := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range av.NumField() {
		if f := av.Type().Field(i); f.IsExported() && f.Name != "Faults" && !reflect.DeepEqual(av.Field(i).Interface(), bv.Field(i).Interface()) {
			return fmt.Errorf("its %s can't change while it is in use; take the LUN out, reload, and put it in again, or restart", f.Name)
		}
	}
	return nil
}

// sameGroups returns an error unless the groups differ in their states only.
func sameGroups(a, b *ALUA) error {
	if (a == nil) != (b == nil) {
		return errors.New("alua can't come or go while it is in use")
	}
	if a == nil {
		return nil
	}
	x, y := *a, *b
	x.Groups, y.Groups = slices.Clone(a.Groups), slices.Clone(b.Groups)
	for _, list := range [][]lun.PortGroup{x.Groups, y.Groups} {
		for i := range list {
			list[i].State = 0
		}
	}
	if !reflect.DeepEqual(x, y) {
		return errors.New("only the states of alua groups can change while it is in use")
	}
	return nil
}

// sameRules tells whether two configurations have the same faults.
func sameRules(a, b *LUN) bool {
	return slices.EqualFunc(a.Faults, b.Faults, func(x, y *fault.Rule) bool { return x.Text == y.Text })
}

// changeFaults puts the rules of the configuration in the place of those of the
// one before. Others stay.
func (u *Unit) changeFaults() error {
	for _, id := range u.configured {
		if _, err := u.Faults.Remove(id); err != nil && !errors.Is(err, fault.ErrNoRule) {
			return err
		}
	}
	return u.addFaults()
}

// settings are those that the unit's disk would have with a configuration.
func (u *Unit) settings(c *LUN) lun.Settings {
	return lun.Settings{Revision: c.Revision, ReadOnly: c.ReadOnly, WriteThrough: c.WriteThrough, SoftThreshold: c.SoftThreshold}
}

// Commit takes the change into use: disks grow and change, and their initiators
// learn of it. What goes wrong now (a write cache that can't be flushed) is
// returned, and the rest done all the same.
func (ch *Change) Commit() error {
	var errs []error
	for _, p := range ch.to.Pools {
		errs = append(errs, changeRoom(ch.lab.rooms[p.Name], p.Size, p.Temporary))
	}
	for _, u := range ch.Kept {
		old := ch.old[u]
		if s := u.Config.Store; s.Limit > 0 {
			errs = append(errs, changeRoom(u.lies.room, s.Limit, s.Temporary))
		}
		if u.grows(old.Config) {
			errs = append(errs, u.Disk.Grow())
		}
		if u.Disk != nil {
			errs = append(errs, u.Disk.Change(u.settings(u.Config)))
		}
		if !sameRules(old.Config, u.Config) {
			errs = append(errs, u.changeFaults())
		}
		if a := u.Config.alua(u.Target); a != nil {
			was := old.Config.alua(old.Target)
			for i, g := range a.Groups {
				if g.State != was.Groups[i].State {
					errs = append(errs, u.Disk.SetAccess(g.ID, g.State))
				}
			}
		}
	}
	place := map[*LUN]*Unit{}
	for _, u := range append(slices.Clone(ch.Kept), ch.Added...) {
		place[u.Config] = u
	}
	var list []*Unit
	for _, t := range ch.to.Targets {
		for _, u := range t.LUNs {
			list = append(list, place[u])
		}
	}
	ch.lab.mu.Lock()
	defer ch.lab.mu.Unlock()
	ch.lab.Config, ch.lab.LUNs = ch.to, list
	maps.DeleteFunc(ch.lab.rooms, func(name string, _ *mem.Room) bool {
		return !slices.ContainsFunc(ch.to.Pools, func(p *Pool) bool { return p.Name == name })
	})
	return errors.Join(errs...)
}

// changeRoom makes the room for memory larger or smaller.
func changeRoom(r *mem.Room, limit int64, temporary bool) error {
	r.Expect(temporary)
	return r.SetLimit(limit)
}

// Undo lets go of what was prepared.
func (ch *Change) Undo() error {
	var errs []error
	for _, u := range ch.Added {
		errs = append(errs, u.Close())
	}
	for _, undo := range slices.Backward(ch.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}
