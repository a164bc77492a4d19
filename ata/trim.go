package ata

import "encoding/binary"

// trimBlocks is how many bytes of ranges DATA SET MANAGEMENT takes for a count of 512-byte
// blocks and what it is to do, 0 if it won't.
func trimBlocks(count uint64, what uint32) uint64 {
	if what != 1 || count == 0 || count > maxTrimBlocks {
		return 0
	}
	return count * wordBlock
}

func trimLength(_ *Drive, t *Taskfile) uint64 {
	return trimBlocks(uint64(t.Count), uint32(t.Feature))
}

// trim is DATA SET MANAGEMENT (ACS-4 7.5).
func (d *Drive) trim(t *Task) failure { return d.trimRanges(t, trimLength(d, &t.Taskfile)) }

// trimRanges unmaps the ranges in n bytes of data. All of them are looked at before any
// is unmapped.
func (d *Drive) trimRanges(t *Task, n uint64) failure {
	if n == 0 {
		return badField
	}
	list, f := t.gather(n)
	if f.failed() {
		return f
	}
	for at := 0; at < len(list); at += 8 {
		if lba, n := trimRange(list[at:]); n > 0 {
			if f := d.beyond(lba, n); f.failed() {
				return f
			}
		}
	}
	for at := 0; at < len(list); at += 8 {
		lba, n := trimRange(list[at:])
		if n == 0 {
			continue
		}
		if err := d.sparse.Unmap(int64(lba*d.size), int64(n*d.size)); err != nil {
			return d.storeFailure(err, lba, true)
		}
		d.heal(lba, n)
	}
	if !d.writeCache() {
		return d.flush()
	}
	return failure{}
}

func trimRange(b []byte) (lba, n uint64) {
	v := binary.LittleEndian.Uint64(b)
	return v & (1<<48 - 1), v >> 48
}
