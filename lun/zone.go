package lun

import (
	"errors"
	"fmt"
	"sync"

	"lunlab/lun/store"
)

// Zoned block devices (ZBC-2), host-managed and host-aware.

// ZoneOptions say how a disk is divided into zones.
type ZoneOptions struct {
	// Size is the length of each zone in blocks. Linux wants a power of two. What
	// makes no whole zone at the end of the store is left unused. In a store that
	// isn't memory, each takes [ZoneOverhead] bytes more.
	Size uint64

	// Conventional is how many zones at the beginning can be written anywhere.
	// The others have to be written from their beginning to their end.
	Conventional int

	// MaxOpen is the most zones that may be open at once. 0 is no limit.
	MaxOpen int

	// HostAware makes it a host-aware device: the other zones would rather be
	// written from their beginning to their end, but can be written anywhere, and
	// MaxOpen is only what is best.
	HostAware bool
}

// ZoneOverhead is how many bytes of a store that isn't memory a zone takes beside
// its blocks, for its write pointer.
const ZoneOverhead = 16

// zoneCondition is how a zone stands (ZBC-2 4.4.3).
type zoneCondition byte

const (
	zoneNoPointer zoneCondition = 0x0 // conventional
	zoneEmpty     zoneCondition = 0x1
	zoneImplicit  zoneCondition = 0x2 // open because it was written to
	zoneExplicit  zoneCondition = 0x3 // open because that was asked for
	zoneClosed    zoneCondition = 0x4
	zoneFull      zoneCondition = 0xe
)

// zone is one zone. Its write pointer is first + written, and means something
// unless the zone is conventional or full.
type zone struct {
	// writing is held over a write, so that the next one finds the pointer moved.
	writing sync.Mutex

	first        uint64
	conventional bool

	// Under zones.mu.
	condition zoneCondition
	written   uint64
	nonSeq    bool // NON_SEQ: it was written out of order since it was empty
}

// zones is the state of all zones.
//
// open counts the zones that are open, implicit those of them that may be closed
// to make room; it never passes max, if that isn't 0.
type zones struct {
	size  uint64
	list  []zone
	aware bool // host-aware
	kept  bool // in the store too; see zonetable.go

	mu   sync.Mutex
	open int
	max  int
}

func zoned(d *Disk) bool    { return d.zones != nil }
func notZoned(d *Disk) bool { return d.zones == nil }

func hostManaged(d *Disk) bool { return zoned(d) && !d.zones.aware }

// newZones divides a disk, whose capacity it rounds down to whole zones. A store
// that outlives the disk has the write pointers too, behind the blocks.
func newZones(d *Disk, o ZoneOptions) (*zones, error) {
	count, kept := uint64(0), !d.volatile
	if o.Size > 0 && o.Size <= d.Blocks() {
		size := o.Size * d.blockSize()
		if kept {
			size += ZoneOverhead
		}
		count = uint64(d.store.Size()) / size
	}
	switch {
	case count == 0:
		return nil, fmt.Errorf("zones of %d blocks don't divide %d", o.Size, d.Blocks())
	case count > 1<<20:
		return nil, fmt.Errorf("%d zones are more than %d", count, 1<<20)
	case o.Conventional < 0 || uint64(o.Conventional) > count || o.MaxOpen < 0:
		return nil, fmt.Errorf("there can't be %d conventional of %d zones, with %d open", o.Conventional, count, o.MaxOpen)
	case d.opt.Thin || d.protectable():
		return nil, errors.New("a zoned disk can have neither thin provisioning nor protection information")
	}
	z := &zones{size: o.Size, list: make([]zone, count), aware: o.HostAware, kept: kept}
	if !z.aware {
		z.max = o.MaxOpen
	}
	for i := range z.list {
		z.list[i].first = uint64(i) * o.Size
		if z.list[i].conventional = i < o.Conventional; !z.list[i].conventional {
			z.list[i].condition = zoneEmpty
		}
	}
	g := *d.geometry()
	g.blocks = uint64(len(z.list)) * o.Size
	g.most = g.blocks
	d.shape.Store(&g)
	return z, nil
}

// at returns the zone that a block is in.
func (z *zones) at(lba uint64) *zone { return &z.list[lba/z.size] }

// writeZone writes n blocks at lba (at least 1) by do, if that is where the write
// pointer is, and moves it (ZBC-2 4.4.3.4).
func (d *Disk) writeZone(lba, n uint64, do func() Sense) Sense {
	z := d.zones
	if z.aware {
		return d.writePreferred(lba, n, do)
	}
	x := z.at(lba)
	if x.conventional {
		if !z.at(lba + n - 1).conventional {
			return Sense{Key: IllegalRequest, Code: ASCWriteBoundaryViolation}
		}
		return do()
	}
	x.writing.Lock()
	defer x.writing.Unlock()
	if s := z.begin(x, lba, n); s.Key != NoSense {
		return s
	}
	if s := do(); s.Key != NoSense {
		return s
	}
	return d.wroteZone(x, lba, n)
}

// writePreferred is writeZone for zones that can be written anywhere, and for more
// than one of them.
func (d *Disk) writePreferred(lba, n uint64, do func() Sense) Sense {
	z := d.zones
	list := z.list[lba/z.size : (lba+n-1)/z.size+1]
	for i := range list {
		x := &list[i]
		if x.conventional {
			continue
		}
		x.writing.Lock() // in ascending order, as all do
		defer x.writing.Unlock()
		z.mu.Lock()
		if x.condition != zoneFull && !x.isOpen() {
			z.setCondition(x, zoneImplicit)
		}
		z.mu.Unlock()
	}
	if s := do(); s.Key != NoSense {
		return s
	}
	for i := range list {
		x := &list[i]
		if x.conventional {
			continue
		}
		from, to := max(lba, x.first), min(lba+n, x.first+z.size)
		if s := d.wroteZone(x, from, to-from); s.Key != NoSense {
			return s
		}
	}
	return Sense{}
}

// wroteZone moves the write pointer of a zone, whose writing is held, past n blocks
// at lba.
func (d *Disk) wroteZone(x *zone, lba, n uint64) Sense {
	z := d.zones
	z.mu.Lock()
	at, nonSeq, full := lba-x.first, x.nonSeq, x.condition == zoneFull
	nonSeq = nonSeq || full || at != x.written
	written := max(x.written, at+n)
	z.mu.Unlock()
	full = full || written == z.size
	if s := d.keepZone(x, written, full, nonSeq); s.Key != NoSense {
		return s
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	x.written, x.nonSeq = written, nonSeq
	if full {
		z.setCondition(x, zoneFull)
	}
	return Sense{}
}

// begin checks a write and opens its zone.
func (z *zones) begin(x *zone, lba, n uint64) Sense {
	z.mu.Lock()
	defer z.mu.Unlock()
	switch {
	case n > z.size-(lba-x.first):
		return Sense{Key: IllegalRequest, Code: ASCWriteBoundaryViolation}
	case x.condition == zoneFull:
		return Sense{Key: IllegalRequest, Code: ASCInvalidFieldInCDB}
	case lba != x.first+x.written:
		return Sense{Key: IllegalRequest, Code: ASCUnalignedWrite}
	case x.isOpen():
		return Sense{}
	}
	return z.openZone(x, zoneImplicit)
}

func (x *zone) isOpen() bool { return x.condition == zoneImplicit || x.condition == zoneExplicit }

// setCondition keeps count of the open zones. mu is held.
func (z *zones) setCondition(x *zone, c zoneCondition) {
	was := x.isOpen()
	x.condition = c
	switch now := x.isOpen(); {
	case now && !was:
		z.open++
	case was && !now:
		z.open--
	}
}

// openZone opens a zone, in place of one that was opened implicitly if there are
// too many (ZBC-2 4.4.3.3). mu is held.
func (z *zones) openZone(x *zone, how zoneCondition) Sense {
	if !x.isOpen() && z.max > 0 && z.open >= z.max && !z.closeImplicit() {
		return Sense{Key: DataProtect, Code: ASCInsufficientZoneResources}
	}
	z.setCondition(x, how)
	return Sense{}
}

func (z *zones) closeImplicit() bool {
	for i := range z.list {
		if x := &z.list[i]; x.condition == zoneImplicit {
			z.closeZone(x)
			return true
		}
	}
	return false
}

// closeZone closes a zone that isn't full. mu is held.
func (z *zones) closeZone(x *zone) {
	if x.written == 0 {
		z.setCondition(x, zoneEmpty)
	} else {
		z.setCondition(x, zoneClosed)
	}
}

// reset makes every zone empty, as after a FORMAT UNIT.
func (z *zones) reset() {
	z.mu.Lock()
	defer z.mu.Unlock()
	for i := range z.list {
		if x := &z.list[i]; !x.conventional {
			x.written, x.nonSeq = 0, false
			z.setCondition(x, zoneEmpty)
		}
	}
}

// resetZone empties a zone (ZBC-2 5.7). What it held reads as zeros.
func (d *Disk) resetZone(x *zone) Sense {
	z := d.zones
	d.locks.lock(x.first, z.size) // before writing, as a write does
	defer d.locks.unlock(x.first, z.size)
	x.writing.Lock()
	defer x.writing.Unlock()
	if err := store.Zero(d.store, int64(x.first*d.blockSize()), int64(z.size*d.blockSize())); err != nil {
		return d.writeError(err, x.first*d.blockSize())
	}
	if s := d.keepZone(x, 0, false, false); s.Key != NoSense {
		return s
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	x.written, x.nonSeq = 0, false
	z.setCondition(x, zoneEmpty)
	return Sense{}
}
