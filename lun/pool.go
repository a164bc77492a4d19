package lun

import (
	"math/bits"
	"sync/atomic"

	"lunlab/lun/store"
)

// Thresholds of a thin provisioned disk whose store has less room than it has
// bytes (SBC-4 4.7.3.7).

const (
	// setBytes is the threshold set size: what counts of resources are in.
	setBytes = 1 << 20

	recoveryPage  = 0x01
	recoveryFlags = 5 // LBPERE is bit 7
	per           = 4 // in its first byte

	exceptionsPage = 0x1c
	poolSubpage    = 0x02

	// The threshold descriptors of the logical block provisioning mode page, as
	// counted in the page without its header, which has 4 bytes.
	usedThreshold      = 12
	availableThreshold = 20
	pageHeader         = 4
)

// pool watches the room of a store.
type pool struct {
	store.Pool

	reports         atomic.Bool  // LBPERE
	used, available atomic.Int64 // centers of the threshold ranges in bytes, -1 if disabled

	toldUsed, toldAvailable atomic.Bool // the threshold was passed and all nexuses were told
}

func pooled(d *Disk) bool { return d.pool != nil }

// newPool returns nil for a store that has room for all.
func newPool(s store.Store) *pool {
	if p, ok := s.(store.Pool); ok && p.Limit() > 0 {
		return &pool{Pool: p}
	}
	return nil
}

// poolPage returns the mode page of the thresholds, one for what is used and one
// for what is available. The first is enabled at soft bytes, if that isn't 0.
func poolPage(soft int64) *modePage {
	v, changeable := make([]byte, 28), make([]byte, 28)
	v[usedThreshold], v[usedThreshold+1] = 1, 2 // armed increasing; used resources
	v[availableThreshold+1] = 1                 // armed decreasing; available resources
	if soft > 0 {
		v[usedThreshold] |= 0x80 // ENABLED
		put32(v[usedThreshold+4:], uint32((soft+setBytes/2)/setBytes))
	}
	for _, at := range []int{usedThreshold, availableThreshold} {
		changeable[at] = 0x80
		put32(changeable[at+4:], 1<<32-1)
	}
	return &modePage{
		code: exceptionsPage, sub: poolSubpage, initial: v, changeable: changeable,
		current: append([]byte(nil), v...), saved: append([]byte(nil), v...),
	}
}

// applyPool makes the mode pages take effect. Disk.mu is held.
func (d *Disk) applyPool() {
	if d.pool == nil {
		return
	}
	d.pool.reports.Store(d.page(recoveryPage, 0).current[recoveryFlags]&0x80 != 0)
	v := d.page(exceptionsPage, poolSubpage).current
	for at, center := range map[int]*atomic.Int64{usedThreshold: &d.pool.used, availableThreshold: &d.pool.available} {
		center.Store(-1)
		if v[at]&0x80 != 0 {
			center.Store(int64(be32(v[at+4:])) * setBytes)
		}
	}
	d.pool.toldUsed.Store(false)
	d.pool.toldAvailable.Store(false)
}

// watchPool looks whether the room passed a threshold, and tells every nexus. It
// is for whenever a nexus could learn of it: other disks take of the room, and its
// limit may change.
func (d *Disk) watchPool() {
	p := d.pool
	if !p.reports.Load() {
		return
	}
	used := p.Used()
	if center := p.used.Load(); center >= 0 {
		d.passed(&p.toldUsed, used > center+setBytes/2, used < center-setBytes/2, pageHeader+usedThreshold)
	}
	if center := p.available.Load(); center >= 0 {
		left := p.Limit() - used
		d.passed(&p.toldAvailable, left < center-setBytes/2, left > center+setBytes/2, pageHeader+availableThreshold)
	}
}

// passed tells of a threshold that is beyond its range, once until it is back
// before it. at is where its descriptor lies in the mode page.
func (d *Disk) passed(told *atomic.Bool, beyond, back bool, at uint64) {
	switch {
	case back:
		told.Store(false)
	case beyond && !told.Swap(true):
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, n := range *d.nexuses.Load() {
			n.attendTo(attention{ASCThinThresholdReached, at})
		}
	}
}

// thresholdExponent is the logarithm of a threshold set in blocks.
func (d *Disk) thresholdExponent() byte { return byte(bits.TrailingZeros64(setBytes / d.blockSize())) }

// poolLog is the logical block provisioning log page (SBC-4 6.4.5).
func (d *Disk) poolLog() []logParameter {
	used, limit := d.pool.Used(), d.pool.Limit()
	scope := byte(1) // dedicated to this logical unit
	if d.pool.Shared() {
		scope = 2 // it may be another's
	}
	resource := func(code uint16, bytes int64) logParameter {
		v := make([]byte, 8)
		put32(v, uint32(min(max(bytes, 0)/setBytes, 1<<32-1)))
		v[4] = scope
		return binaryList(code, v...)
	}
	return []logParameter{resource(1, limit-used), resource(2, used)}
}
