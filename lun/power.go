package lun

import "errors"

// LosePower is a loss of power and its return. lose is called to have the store
// lose what its cache holds. Commands that run meanwhile fail with the unit
// attention that every nexus gets, POWER ON OCCURRED; what they did may be there or
// not. Mode pages are as they were saved, reservations are gone but for those with
// APTPL, and the disk is started.
//
// A disk that is being formatted or sanitized refuses.
func (d *Disk) LosePower(lose func() error) error {
	d.mu.Lock()
	if d.state.Load()&(formatting|sanitizing) != 0 {
		d.mu.Unlock()
		return errors.New("lun: the disk is being formatted or sanitized")
	}
	// A command that runs over either end of this is one that runs meanwhile.
	d.cuts.Add(1)
	d.mu.Unlock()
	err := lose()
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
