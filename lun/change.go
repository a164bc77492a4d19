package lun

import (
	"errors"
	"fmt"
	"slices"

	"lunlab/lun/store"
)

// Changes to a disk that is in use.

// Settings are what can change while a disk is in use. [Disk.Settings] returns
// those that hold, and [Disk.Change] puts others in their place. For what they
// mean, and zero values, see [DiskOptions].
type Settings struct {
	Revision string
	ReadOnly bool

	// WriteThrough and SoftThreshold are what the mode pages have at first. A change of one takes the place of what is current and, unless
	// an initiator has saved something else, of what is saved.
	WriteThrough  bool
	SoftThreshold int64 // in bytes
}

// Settings returns what holds now.
func (d *Disk) Settings() Settings { return *d.settings.Load() }

// CheckSettings returns why [Disk.Change] would refuse s.
func (d *Disk) CheckSettings(s Settings) error {
	_, err := d.complete(s)
	return err
}

// complete checks settings and fills in what they leave to be chosen.
func (d *Disk) complete(s Settings) (Settings, error) {
	var x Disk
	if err := x.setOptions(s.in(d.opt)); err != nil {
		return s, fmt.Errorf("lun: %w", err)
	}
	return x.Settings(), nil
}

// in returns options that have the settings in place of their own.
func (s Settings) in(o DiskOptions) DiskOptions {
	o.Revision, o.ReadOnly, o.WriteThrough, o.SoftThreshold = s.Revision, s.ReadOnly, s.WriteThrough, s.SoftThreshold
	return o
}

// Change puts settings into effect. Every nexus learns of it by a unit attention:
// INQUIRY DATA HAS CHANGED, MODE PARAMETERS CHANGED or both, or none if nothing
// is different. Commands that execute end by the old settings or by the new ones.
func (d *Disk) Change(s Settings) error {
	s, err := d.complete(s)
	if err != nil {
		return err
	}
	if uncached := d.change(s); uncached {
		if sense := d.flush(); sense.Key != NoSense {
			return errors.New("lun: what the write cache held could not be made durable")
		}
	}
	return nil
}

// change tells whether the write cache was turned off, so that what is in it is
// to be flushed.
func (d *Disk) change(s Settings) (uncached bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := *d.settings.Swap(&s)
	if old.Revision != s.Revision {
		d.attendOthers(nil, ASCInquiryDataHasChanged)
	}
	cached := d.writeBack.Load()
	if old.WriteThrough != s.WriteThrough {
		p := d.page(cachingPage, 0)
		initial := slices.Clone(p.initial)
		initial[cachingFlags] = cachingInitial(s.WriteThrough)
		p.replace(initial)
	}
	if old.SoftThreshold != s.SoftThreshold && pooled(d) {
		d.page(exceptionsPage, poolSubpage).replace(poolPage(s.SoftThreshold).initial)
	}
	if old.ReadOnly != s.ReadOnly || old.WriteThrough != s.WriteThrough || old.SoftThreshold != s.SoftThreshold {
		d.applyModes()
		d.attendOthers(nil, ASCModeParametersChanged)
	}
	return cached && !d.writeBack.Load()
}

// replace gives the page another initial value. Disk.mu is held.
func (p *modePage) replace(initial []byte) {
	if slices.Equal(p.saved, p.initial) {
		copy(p.saved, initial)
	}
	copy(p.initial, initial)
	copy(p.current, initial)
}

// CanGrow returns why the disk can't become larger while it is in use.
func (d *Disk) CanGrow() error {
	switch {
	case d.protectable():
		return errors.New("lun: a disk with protection information can't grow: it lies behind the blocks")
	case d.zones != nil:
		return errors.New("lun: a zoned disk can't grow")
	case d.state.Load()&(formatting|sanitizing) != 0:
		return errors.New("lun: a disk can't grow while it is formatted or sanitized")
	}
	if _, ok := d.store.(store.Resizer); !ok {
		return errors.New("lun: the store can't grow")
	}
	return nil
}

// Grow takes into use what the store has become larger by since the disk was
// made (see [store.Resizer]). Every nexus learns of it by the unit attention
// CAPACITY DATA HAS CHANGED. A store that has become smaller is an error.
func (d *Disk) Grow() error {
	d.mu.Lock() // which also keeps FORMAT UNIT from beginning
	defer d.mu.Unlock()
	if err := d.CanGrow(); err != nil {
		return err
	}
	old := d.geometry()
	g, err := d.newGeometry(d.store.Size(), old.blockSize, old.limit)
	switch {
	case err != nil:
		return fmt.Errorf("lun: %w", err)
	case g.blocks < old.blocks:
		return fmt.Errorf("lun: the store has room for %d blocks, and the disk has %d", g.blocks, old.blocks)
	case g.blocks > old.blocks:
		d.shape.Store(g)
		d.attendOthers(nil, ASCCapacityDataHasChanged)
	}
	return nil
}
