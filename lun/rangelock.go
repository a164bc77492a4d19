package lun

import "sync"

const (
	stripeBlocks = 2048
	stripeCount  = 64
	allStripes   = stripeBlocks * stripeCount // blocks at 0 that are in every stripe
)

// rangeLock keeps commands that have to see and change blocks as one (COMPARE
// AND WRITE, ORWRITE) apart from all others that touch the same. Those share
// it, so that it costs READ and WRITE an atomic addition for each stripe of
// 2,048 blocks.
type rangeLock struct {
	stripes [stripeCount]struct {
		sync.RWMutex
		_ [40]byte // to a cache line of its own
	}
}

// each calls do for the stripes of n blocks (at least 1) at lba in ascending
// order, which keeps those who take several from waiting for each other.
func (l *rangeLock) each(lba, n uint64, do func(*sync.RWMutex)) {
	first, last := lba/stripeBlocks, (lba+n-1)/stripeBlocks
	if last-first >= stripeCount-1 {
		first, last = 0, stripeCount-1
	}
	a, b := first%stripeCount, last%stripeCount
	if a > b {
		for i := uint64(0); i <= b; i++ {
			do(&l.stripes[i].RWMutex)
		}
		b = stripeCount - 1
	}
	for i := a; i <= b; i++ {
		do(&l.stripes[i].RWMutex)
	}
}

func (l *rangeLock) share(lba, n uint64)   { l.each(lba, n, (*sync.RWMutex).RLock) }
func (l *rangeLock) unshare(lba, n uint64) { l.each(lba, n, (*sync.RWMutex).RUnlock) }
func (l *rangeLock) lock(lba, n uint64)    { l.each(lba, n, (*sync.RWMutex).Lock) }
func (l *rangeLock) unlock(lba, n uint64)  { l.each(lba, n, (*sync.RWMutex).Unlock) }
