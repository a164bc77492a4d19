package lun

import "errors"

// LosePower is a loss of power and its return. lose is called to have the store
// lose what its cache holds. Commands that run or come meanwhile fail with the unit
// attention that every nexus gets, POWER ON OCCURRED; what they did may be there or
// not. Mode pages are as they were saved, reservations are gone but for those with
// APTPL, copies have ended, no zone is open, and the disk is started.
//
// A disk that is being formatted or sanitized refuses.
func (d *Disk) LosePower(lose func() error) error {
	d.cutting.Lock()
	defer d.cutting.Unlock()
	d.mu.Lock()
	if d.state.Load()&(formatting|sanitizing) != 0 {
		d.mu.Unlock()
		return errors.New("lun: the disk is being formatted or sanitized")
	}
	d.cuts.Add(1)
	copies := d.abortCopies()
	d.mu.Unlock()
	for _, op := range copies {
		<-op.done
	}
	err := lose()
	if zoned(d) {
		err = errors.Join(err, d.recallZones())
	}
	d.rods.cancelAll() // what they stand for may be gone
	d.mu.Lock()
	d.state.Store(d.state.Load() &^ stopped)
	if r := &d.reserve; !r.persists {
		r.list, r.kind, r.holder, r.generation = nil, 0, nil, 0
	}
	d.mu.Unlock()
	d.notify(nil, HardReset)
	d.cuts.Add(1)
	return err
}

// unpowered tells whether the power is gone at a count of cuts.
func unpowered(cuts uint32) bool { return cuts&1 != 0 }

// powerLost is the sense data for a command whose work may be gone.
func powerLost() Sense { return Sense{Key: UnitAttention, Code: ASCPowerOnOrReset} }
