package target

import (
	"encoding/binary"
	"slices"
	"sync"

	"lunlab/lun"
)

// Nexus is an I_T nexus and the tasks that came by it. It is safe for
// concurrent use.
type Nexus struct {
	id      lun.Nexus
	target  *Target
	visible func(number uint16) bool

	mu     sync.Mutex
	closed bool
	tasks  taskTable
}

// Open makes a nexus to t. With visible not nil, only the logical units that it
// tells true of are there for this nexus. It may come to tell something else: then
// [Nexus.InventoryChanged] is due.
func (t *Target) Open(id lun.Nexus, visible func(number uint16) bool) *Nexus {
	n := &Nexus{id: id, target: t, visible: visible, tasks: newTaskTable()}
	n.id.Sees = n.sees // for what units do in its name with others
	n.id.LUNsReported = n.inventoryReported
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nexuses[n] = struct{}{}
	return n
}

// InventoryChanged has the initiator told that it sees other logical units than
// before (REPORTED LUNS DATA HAS CHANGED, SPC-5 6.33).
func (n *Nexus) InventoryChanged() {
	for number, lu := range *n.target.units.Load() {
		if n.sees(number) {
			lu.unit.Notify(&n.id, lun.LUNsChanged)
		}
	}
}

// Name is the nexus's name, for people.
func (n *Nexus) Name() string { return n.id.Name }

// Close ends the nexus: its tasks are aborted and have ended when Close
// returns, no more can enter, and the units are told of the loss.
func (n *Nexus) Close() {
	n.mu.Lock()
	was := n.closed
	n.closed = true
	n.mu.Unlock()
	if was {
		return
	}
	a := n.target.abort(n, []*Nexus{n}, func(*Task) bool { return true })
	a.Wait()
	n.target.mu.Lock()
	delete(n.target.nexuses, n)
	n.target.mu.Unlock()
	for _, lu := range *n.target.units.Load() {
		lu.set.clearFaults(n)
		lu.unit.Notify(&n.id, lun.NexusLoss)
	}
}

// Lookup finds the logical unit at a. It is never nil: where there is none, or
// none that this nexus may see, it is one that answers so (SPC-5 6.6.1, 6.33,
// 6.39).
func (n *Nexus) Lookup(a Address) *LogicalUnit {
	if number, ok := a.Number(); ok {
		if lu := (*n.target.units.Load())[number]; lu != nil && n.sees(number) {
			return lu
		}
	} else if a == ReportLUNsWellKnown {
		return n.target.wlun
	}
	return n.target.absent
}

func (n *Nexus) sees(number uint16) bool { return n.visible == nil || n.visible(number) }

// DataLength is [lun.Unit.DataLength] of lu, also for the command that the
// target itself answers.
func (n *Nexus) DataLength(lu *LogicalUnit, cdb []byte) (out, in uint64) {
	if len(cdb) > 0 && cdb[0] == opReportLUNs {
		return wellKnownUnit.DataLength(cdb)
	}
	return lu.unit.DataLength(cdb)
}

// reportLUNs answers REPORT LUNS (SPC-5 6.33), which every logical unit has.
func (n *Nexus) reportLUNs(c *lun.Command) {
	if _, s := commands.Find(c.CDB); s.Key != lun.NoSense {
		c.Fail(s)
		return
	}
	var list []Address
	selectReport := c.CDB[2]
	switch selectReport {
	case 0x00, 0x02, 0x11:
		for number := range *n.target.units.Load() {
			if n.sees(number) {
				list = append(list, NumberAddress(number))
			}
		}
		slices.SortFunc(list, func(a, b Address) int { return slices.Compare(a[:], b[:]) })
	case 0x01, 0x10, 0x12: // 1xh: none is administrative, or part of a conglomerate
	default:
		c.Fail(lun.InvalidField(2, 7))
		return
	}
	if selectReport == 0x01 || selectReport == 0x02 {
		list = append(list, ReportLUNsWellKnown)
	}
	b := make([]byte, 8, 8+8*len(list))
	binary.BigEndian.PutUint32(b, uint32(8*len(list)))
	for _, a := range list {
		b = append(b, a[:]...)
	}
	answer(c, b, binary.BigEndian.Uint32(c.CDB[6:]))
	n.inventoryReported()
}

// inventoryReported ends REPORTED LUNS DATA HAS CHANGED for all logical units, after
// REPORT LUNS or when one of them has told of it (SPC-5 6.33, 7.7.7: LUICLR).
func (n *Nexus) inventoryReported() {
	for _, lu := range *n.target.units.Load() {
		lu.unit.Notify(&n.id, lun.LUNsReported)
	}
}

// answer stores the first allocation bytes of b as the command's data-in.
func answer(c *lun.Command, b []byte, allocation uint32) {
	b = b[:min(len(b), int(allocation))]
	c.Status, c.InLen = lun.Good, uint64(len(b))
	for _, to := range c.DataIn {
		b = b[copy(to, b):]
	}
}
