package lun

var statusOps = []op{
	{name: "GET LBA STATUS(16)", usage: "9e 12 ffffffffffffffff ffffffff 1f 00", class: reads | medium, moves: allocates(10, 4), run: (*Disk).lbaStatus},
	{name: "GET LBA STATUS(32)", usage: "7f 00 00000000 00 18 0012 1f 00 ffffffffffffffff ffffffff 00000000 ffffffff", class: reads | medium, moves: allocates(28, 4), run: (*Disk).lbaStatus},
}

// Report types of GET LBA STATUS (SBC-4 table 49).
const (
	statusAll         = 0x00
	statusNonZero     = 0x01 // all, with a status for mapped ones too
	statusMapped      = 0x02
	statusDeallocated = 0x03
	statusAnchored    = 0x04
	statusBad         = 0x10 // what may return an unrecovered error
)

// Provisioning status (SBC-4 table 53).
const (
	mappedOrUnknown = 0x0
	deallocated     = 0x1
	anchored        = 0x2
	mappedForSure   = 0x3
)

// maxStatusDescriptors bounds the answer to GET LBA STATUS.
const maxStatusDescriptors = 128

// lbaStatus is SBC-4 5.6 and 5.7. There are no physical elements to choose from.
func (d *Disk) lbaStatus(_ *nexus, c *Command) Sense {
	lba, allocation, kind, kindAt := be64(c.CDB[2:]), uint64(be32(c.CDB[10:])), c.CDB[14], 14
	end := d.Blocks()
	scan := uint64(0)
	if c.CDB[0] == variable {
		lba, scan, allocation, kind, kindAt = be64(c.CDB[12:]), uint64(be32(c.CDB[20:])), uint64(be32(c.CDB[28:])), c.CDB[10], 10
	}
	if s := d.beyond(lba, 0); s.Key != NoSense {
		return s
	}
	if kind > statusAnchored && kind != statusBad {
		return InvalidField(kindAt, 4)
	}
	condition := byte(3) // the end of the medium
	if scan > 0 && scan < end-lba {
		end, condition = lba+scan, 2
	}
	var buf [8 + 16*maxStatusDescriptors]byte
	at := 8
	for lba < end {
		if at == len(buf) || at > 8 && uint64(at) >= allocation {
			condition = 1
			break
		}
		r, provisioning, s := d.statusRun(kind, lba, min(end-lba, 1<<32-1))
		if s.Key != NoSense {
			return s
		}
		lba = r.lba + r.n
		if !statusWanted(kind, provisioning) {
			continue
		}
		desc := buf[at : at+16]
		put64(desc, r.lba)
		put32(desc[8:], uint32(r.n))
		desc[12] = provisioning
		if kind == statusBad {
			desc[13] = 1
		}
		at += 16
	}
	put32(buf[:], uint32(at-4))
	buf[7] = condition<<1 | 1 // RTP
	c.Reply(buf[:at], allocation)
	return Sense{}
}

// statusRun returns the first of the n blocks at lba that a report is about, with
// those that follow and are alike, and their provisioning status.
func (d *Disk) statusRun(kind byte, lba, n uint64) (r run, status byte, s Sense) {
	if kind == statusBad {
		first, count, ok := d.bad.First(lba, n)
		if !ok {
			return run{lba, n}, mappedOrUnknown, Sense{}
		}
		lba, n = first, count
	}
	if first, count, ok := d.anchored.First(lba, n); ok && first == lba {
		return run{first, count}, anchored, Sense{}
	} else if ok {
		n = first - lba
	}
	is, n, s := d.mappedRun(lba, n)
	switch {
	case !is:
		status = deallocated
	case kind == statusAll:
		status = mappedOrUnknown
	default:
		status = mappedForSure
	}
	return run{lba, n}, status, s
}

// statusWanted tells whether a report is about blocks with a status.
func statusWanted(kind, status byte) bool {
	switch kind {
	case statusMapped:
		return status == mappedForSure
	case statusDeallocated:
		return status == deallocated
	case statusAnchored:
		return status == anchored
	case statusBad:
		return status != mappedOrUnknown
	}
	return true
}

// mappedRun tells whether the block at lba has room in the store, and how many
// from there on, most at the most, are the same. A block of which the store has
// a part has room.
func (d *Disk) mappedRun(lba, most uint64) (mapped bool, n uint64, s Sense) {
	if d.sparse == nil {
		return true, most, Sense{}
	}
	size := d.blockSize()
	for n < most {
		off, limit := (lba+n)*size, (most-n)*size
		is, length, err := d.sparse.Extent(int64(off), int64(limit))
		if err != nil {
			return false, 0, d.readError(err, off)
		}
		run := uint64(length) / size
		if is {
			run = (uint64(length) + size - 1) / size
		} else if run == 0 {
			is, run = true, 1
		}
		if n > 0 && is != mapped {
			break
		}
		mapped, n = is, n+run
		if uint64(length) == limit {
			break
		}
	}
	return mapped, min(n, most), Sense{}
}
