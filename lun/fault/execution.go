package fault

import (
	"lunlab/lun"
)

// execution is one command on its way through the rules.
type execution struct {
	unit       lun.Unit
	attentions *attentions
	c          *lun.Command
	rules      []*armed
	others     int // in flight beside it

	extent extent
	bends  []bend // what becomes of its data
}

// bend is a rule that changes data, and the first block that it is about.
type bend struct {
	*armed
	lba uint64
}

func (x *execution) run(attends bool) {
	c := x.c
	for _, a := range x.rules {
		if !x.standStill(a) {
			x.abort()
			return
		}
	}
	if attends && x.attentions.report(c) {
		return
	}
	x.extent = extentOf(c)
	for _, a := range x.rules {
		if a.waits() && c.Cancel == nil {
			continue // the transport can't wait: see lun.Command
		}
		lba, ok := a.matches(c, &x.extent, x.others)
		if !ok || !a.fires() {
			continue
		}
		if a.Delay != nil && !a.wait(c, a.delay(), nil) {
			x.abort()
			return
		}
		if x.act(a, lba) {
			return
		}
	}
	x.finish()
}

// standStill waits while a stall lasts. It returns false if the command was
// aborted.
func (x *execution) standStill(a *armed) bool {
	if !a.stalled.Load() || x.c.Cancel == nil {
		return true
	}
	left := a.left()
	return left == 0 || a.wait(x.c, left, a.gone)
}

// act does what a rule says, and tells whether that was the command's answer.
func (x *execution) act(a *armed, lba uint64) bool {
	c := x.c
	switch a.Act {
	case Answer:
		x.answer(a, lba)
		return true
	case MediumError:
		x.failAt(lun.Sense{Key: lun.MediumError, Code: lun.ASCUnrecoveredReadError, Info: lba, HasInfo: true}, false, lba)
		return true
	case Attention:
		x.attentions.attend(c.Nexus, a.Sense.Code)
		x.fail(a.Sense, a.Descriptor)
		return true
	case Never:
		if a.Execute {
			x.execute()
		}
		a.wait(c, -1, nil)
		x.abort()
		return true
	case AnswerAfterAbort:
		a.wait(c, -1, nil)
		c.Cancel = nil // else the unit would give up
		c.AnswerAborted = true
	case Stall:
		a.stalled.Store(true)
		if !x.standStill(a) {
			x.abort()
			return true
		}
	case Drop:
		if c.Path == nil || !c.Path.Drop(a.Link) {
			a.unfire()
		}
	case Short, Corrupt:
		x.bends = append(x.bends, bend{a, lba})
	}
	return false
}

// finish executes the command, with its data as the rules want it.
func (x *execution) finish() {
	c := x.c
	length := x.dataLength()
	for _, b := range x.bends {
		if b.Act == Corrupt && length.out > 0 && !corrupt(&c.DataOut, length.out, b.Corrupt, x.anchor(b, length.out), true) {
			b.unfire()
		}
	}
	x.execute()
	for _, b := range x.bends {
		switch {
		case b.Act == Short:
			c.InLen, c.OutLen = min(c.InLen, b.Short), min(c.OutLen, b.Short)
		case length.out == 0 && !corrupt(&c.DataIn, c.InLen, b.Corrupt, x.anchor(b, length.in), false):
			b.unfire()
		}
	}
}

// execute has the unit do the command. What it writes can be read again.
func (x *execution) execute() {
	x.unit.Execute(x.c)
	if x.c.Status != lun.Good || x.extent.access&writes == 0 {
		return
	}
	for _, a := range x.rules {
		if a.bad == nil {
			continue
		}
		a.bad.heal(x.extent.first)
		for _, r := range x.extent.more {
			a.bad.heal(r)
		}
	}
}

type dataLength struct{ out, in uint64 }

func (x *execution) dataLength() (l dataLength) {
	if len(x.bends) > 0 {
		l.out, l.in = x.unit.DataLength(x.c.CDB)
	}
	return l
}

// anchor is where the first block that a rule is about begins in data of n bytes.
func (x *execution) anchor(b bend, n uint64) uint64 {
	if b.Blocks == nil || x.extent.layout == nil || !x.extent.layout.blocks {
		return 0
	}
	return (b.lba - x.extent.first.First) * (n / x.extent.blocks())
}

// answer answers with a status of the rule's.
func (x *execution) answer(a *armed, lba uint64) {
	c := x.c
	if a.Execute {
		x.execute()
		if c.Status != lun.Good {
			return // it has a reason of its own
		}
	}
	if a.Status == lun.CheckCondition {
		s := a.Sense
		if a.InfoLBA && x.extent.ok {
			s.Info, s.HasInfo = lba, true
			if !a.Execute {
				x.failAt(s, a.Descriptor, lba)
				return
			}
		}
		x.fail(s, a.Descriptor)
		return
	}
	if !a.Execute {
		c.InLen, c.OutLen = 0, 0
		if a.Status == lun.Good {
			c.OutLen = x.taken() // and lost
		}
	}
	c.Status, c.Sense = a.Status, nil
}

// taken is how much data-out the command would have moved.
func (x *execution) taken() uint64 {
	given := uint64(0)
	for _, b := range x.c.DataOut {
		given += uint64(len(b))
	}
	out, _ := x.unit.DataLength(x.c.CDB)
	return min(out, given)
}

// failAt ends the command with sense data that names the block lba. As a drive
// does, it transfers the blocks before that: an initiator takes them for done.
func (x *execution) failAt(s lun.Sense, descriptor bool, lba uint64) {
	if l := x.extent.layout; l != nil && l.blocks && lba > x.extent.first.First {
		cdb := x.c.CDB
		x.c.CDB = l.shorten(cdb, lba-x.extent.first.First)
		x.unit.Execute(x.c)
		x.c.CDB = cdb
		if x.c.Status != lun.Good {
			return // it doesn't even come that far
		}
	}
	x.fail(s, descriptor)
}

// fail ends the command with sense data, in the format that has room for it.
func (x *execution) fail(s lun.Sense, descriptor bool) {
	if descriptor || s.HasInfo && s.Info > 0xffffffff {
		x.c.FailDescriptor(s)
	} else {
		x.c.Fail(s)
	}
}

// abort ends a command that was aborted while it waited. Nobody will see how.
func (x *execution) abort() {
	x.c.Status, x.c.Sense = lun.TaskAborted, nil
	x.c.InLen, x.c.OutLen = 0, 0
}

// blocks is how many blocks the command names; it may be 0 for 2^64.
func (x *extent) blocks() uint64 { return x.first.Last - x.first.First + 1 }

// corrupt changes bytes of the first n of a list of buffers, from where on the
// corruption counts, and tells whether there were any. With clone, the buffers that
// it touches are replaced by changed copies, as others may be reading them.
func corrupt(list *[][]byte, n uint64, k *Corruption, from uint64, clone bool) bool {
	from += k.Offset
	to := min(from+k.Length, n)
	changed := false
	at := uint64(0)
	for i := 0; i < len(*list) && at < to; i++ {
		b := (*list)[i]
		start, end := max(from, at), min(to, at+uint64(len(b)))
		if start < end {
			if clone {
				if !changed {
					*list = append([][]byte(nil), *list...)
				}
				b = append([]byte(nil), b...)
				(*list)[i] = b
			}
			for j := start - at; j < end-at; j++ {
				if k.Set {
					b[j] = k.Value
				} else {
					b[j] ^= k.Value
				}
			}
			changed = true
		}
		at += uint64(len(b))
	}
	return changed
}
