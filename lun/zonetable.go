package lun

import (
	"fmt"

	"lunlab/lun/store"
)

// The write pointers of a zoned disk over a store that outlives it: an entry for
// each zone, behind the blocks. It is written after the data and before the
// status, so that a process that is killed has moved no pointer past data that
// isn't there, and has forgotten nothing that it has told of. All zeros is an
// empty zone.
const zoneEntrySize = ZoneOverhead

// An entry is how many blocks of the zone are written, and these flags.
const (
	zoneEntryFull      = 1
	zoneEntryNonSeq    = 2
	zoneEntryFlagsByte = 8
)

// zoneEntry is where in the store the entry of zone i lies.
func (d *Disk) zoneEntry(i uint64) int64 {
	g := d.geometry()
	return int64(g.blocks*g.blockSize + i*zoneEntrySize)
}

// keepZone writes the entry of a zone as it is going to be. Its writing is held.
func (d *Disk) keepZone(x *zone, written uint64, full, nonSeq bool) Sense {
	if !d.zones.kept {
		return Sense{}
	}
	var b [zoneEntrySize]byte
	put64(b[:], written)
	if full {
		b[zoneEntryFlagsByte] |= zoneEntryFull
	}
	if nonSeq {
		b[zoneEntryFlagsByte] |= zoneEntryNonSeq
	}
	if _, err := d.store.WriteAt(b[:], d.zoneEntry(x.first/d.zones.size)); err != nil {
		return d.writeError(err, x.first*d.blockSize())
	}
	return Sense{}
}

// recallZones takes up what was kept, as when the power comes. What was open is
// closed, also where nothing is kept because nothing gets lost.
func (d *Disk) recallZones() error {
	z := d.zones
	for i := range z.list {
		z.list[i].writing.Lock() // in ascending order, as all do
		defer z.list[i].writing.Unlock()
	}
	b := make([]byte, zoneEntrySize*len(z.list))
	if z.kept {
		if _, err := d.store.ReadAt(b, d.zoneEntry(0)); err != nil {
			return fmt.Errorf("read the zones' write pointers: %w", err)
		}
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for i := range z.list {
		x, e := &z.list[i], b[i*zoneEntrySize:]
		switch {
		case x.conventional:
			continue
		case !z.kept:
			if x.isOpen() {
				z.closeZone(x)
			}
			continue
		}
		flags := e[zoneEntryFlagsByte]
		x.written, x.nonSeq = be64(e), flags&zoneEntryNonSeq != 0
		switch {
		case x.written > z.size:
			return fmt.Errorf("the write pointers that the store holds are damaged: %d blocks of %d are written in zone %d", x.written, z.size, i)
		case flags&zoneEntryFull != 0 || x.written == z.size:
			z.setCondition(x, zoneFull)
		default:
			z.closeZone(x)
		}
	}
	return nil
}

// resetZones makes every zone empty, as FORMAT UNIT does.
func (d *Disk) resetZones() error {
	if d.zones.kept {
		if err := store.Zero(d.store, d.zoneEntry(0), int64(zoneEntrySize*len(d.zones.list))); err != nil {
			return err
		}
	}
	d.zones.reset()
	return nil
}
