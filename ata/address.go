package ata

import "lunlab/lun"

// Features of ACCESSIBLE MAX ADDRESS CONFIGURATION (ACS-4 7.1).
const (
	getNativeMaxAddress        = 0x0000
	setAccessibleMaxAddress    = 0x0001
	freezeAccessibleMaxAddress = 0x0002
)

// accessible is what the Accessible Max Address feature set knows. The capacity outlives a
// power cycle.
type accessible struct {
	blocks uint64
	frozen bool // until power goes
	set    bool // since power came: once is all
}

// configureMaxAddress is ACCESSIBLE MAX ADDRESS CONFIGURATION.
func (d *Drive) configureMaxAddress(t *Task) failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := &d.accessible
	switch t.Feature {
	case getNativeMaxAddress:
		t.Answer.LBA = d.blocks - 1
	case setAccessibleMaxAddress:
		switch {
		case a.frozen:
			return locked
		case a.set:
			return outOfOrder
		case t.LBA >= d.blocks:
			return failure{err: ErrorIDNF, key: lun.IllegalRequest, code: lun.ASCLBAOutOfRange}
		}
		a.blocks, a.set = t.LBA+1, true
	case freezeAccessibleMaxAddress:
		a.frozen = true
	default:
		return badField
	}
	return failure{}
}
