package probe

import (
	"github.com/cilium/ebpf/asm"
)

// The records in BPF maps. Each is declared once as a Go structure, whose
// layout the programs use by the offsets below it; there is no padding.

// deviceKey tells devices apart. An address alone would not: host numbers are
// given again, often at once, and so is the memory of hosts and devices. A
// device that is deleted and found again on the same host has the same key.
type deviceKey struct {
	// HostID is the number of the host's folder in sysfs (kernfs_node.id), which
	// isn't given again; 0 where it isn't known.
	HostID  uint64
	ID      uint32
	Channel uint32
	LUN     uint64
}

const (
	keyHostID  = 0
	keyID      = 8
	keyChannel = 12
	keyLUN     = 16
	keySize    = 24
)

// deviceRecord is one device's, shared by all CPUs. Its counters are changed
// atomically; the rest is what the last command saw.
type deviceRecord struct {
	InFlight   int64
	Dones      uint64
	Rejected   uint64 // by the driver's queuecommand
	TimedOut   uint64
	Ended      uint64 // by the error handler, after a time-out
	Unmatched  uint64 // ended, without a start that was seen
	Stale      uint64 // started, while an earlier start had not ended
	MapChanges uint64
	MapState   uint32 // mapUnknown, mapAllocated or mapElided
	CanQueue   uint32
	HWQueues   uint32
	TagQueues  uint32
	MapDepth   uint32
	MapShift   uint32
	QueueDepth uint16
	CmdPerLUN  int16
	HostTagset uint8
	NeedsToken uint8
	_          uint16
	HostNo     uint32
	_          uint32
	Queues     [maxQueues + 1]uint64 // starts by hardware queue; the last: further ones
}

const (
	devInFlight   = 0
	devDones      = 8
	devRejected   = 16
	devTimedOut   = 24
	devEnded      = 32
	devUnmatched  = 40
	devStale      = 48
	devMapChanges = 56
	devMapState   = 64
	devCanQueue   = 68
	devHWQueues   = 72
	devTagQueues  = 76
	devMapDepth   = 80
	devQueueDepth = 88
	devCmdPerLUN  = 90
	devHostTagset = 92
	devNeedsToken = 93
	devHostNo     = 96
	devQueues     = 104
	devSize       = devQueues + 8*(maxQueues+1)

	maxQueues = 64
)

const (
	mapUnknown = iota
	mapAllocated
	mapElided
)

// commandRecord is one command's that is in flight, by its scsi_cmnd.
type commandRecord struct {
	Device  deviceKey
	State   uint64 // 1: it has timed out
	Token   int32
	Tag     int32
	Queue   uint32
	_       uint32
	Started uint64 // CLOCK_MONOTONIC, in nanoseconds
}

const (
	cmdState   = keySize
	cmdToken   = keySize + 8 // and the tag behind it
	cmdQueue   = keySize + 16
	cmdStarted = keySize + 24
	cmdSize    = keySize + 32
)

// phaseKey is of one device between two marks.
type phaseKey struct {
	Device deviceKey
	Phase  uint64
}

const phaseKeySize = keySize + 8

// phaseRecord is one CPU's of a device between two marks, so that a highest or
// lowest value needs no lock.
type phaseRecord struct {
	Peak               uint32
	MinTag, MaxTag     int32
	MinToken, MaxToken int32
	_                  uint32
	Starts             uint64
	WithMap            uint64
	WithoutMap         uint64
}

const (
	phPeak       = 0
	phMinTag     = 4
	phMaxTag     = 8
	phMinToken   = 12
	phMaxToken   = 16
	phStarts     = 24
	phWithMap    = 32
	phWithoutMap = 40
	phSize       = 48
)

// controlRecord is there once. The phase is in a map of its own, since it is
// written from outside.
type controlRecord struct {
	TimedOut    uint64 // commands in flight that have timed out
	LostDevice  uint64 // no room for a device
	LostCommand uint64 // no room for a command in flight
	LostPhase   uint64 // no room for a phase
	Faults      uint64 // a read of the kernel's memory failed
}

const (
	ctlTimedOut    = 0
	ctlLostDevice  = 8
	ctlLostCommand = 16
	ctlLostPhase   = 24
	ctlFaults      = 32
	ctlSize        = 40
)

// A program's stack: from R10 down. Each base pointer of a read has its slot.
const (
	stKey     = -phaseKeySize // a deviceKey, and behind it the phase
	stPhase   = stKey + keySize
	stCommand = stKey - cmdSize // a commandRecord
	stCmd     = stCommand - 8   // the scsi_cmnd's address
	stDevice  = stCmd - 8
	stHost    = stDevice - 8
	stFolder  = stHost - 8 // the host's kernfs_node's address
	stRequest = stFolder - 8
	stQueue   = stRequest - 8 // the blk_mq_hw_ctx's address
	stMap     = stQueue - 8   // budget_map.map
	stDepth   = stMap - 8     // budget_map.depth and .shift
	stCount   = stDepth - 8   // in flight
	stTag     = stCount - 4
	stToken   = stTag - 4
	stQueueNo = stToken - 4
	stFault   = stQueueNo - 4
	stHostNo  = stFault - 4
	// What is copied to a deviceRecord from devCanQueue on.
	stCanQueue   = stHostNo - 4 - 16 // on 8 bytes
	stHWQueues   = stCanQueue + 4
	stTagQueues  = stCanQueue + 8
	stQueueDepth = stCanQueue + 12
	stCmdPerLUN  = stCanQueue + 14
	stHostTagset = stCanQueue - 8
	stNeedsToken = stHostTagset + 1
	stZero       = stHostTagset + 4 // a key of 0
	stEnd        = stHostTagset
)

// builder assembles a program. A label put before an instruction is given to
// the next one that is added.
type builder struct {
	layout *Layout
	maps   mapFDs
	ins    asm.Instructions
	label  string
}

// mapFDs are the file descriptors of the maps that programs use.
type mapFDs struct{ devices, commands, phases, phase, control, zero int }

func (b *builder) add(ins ...asm.Instruction) {
	for _, i := range ins {
		if b.label != "" {
			i = i.WithSymbol(b.label)
			b.label = ""
		}
		b.ins = append(b.ins, i)
	}
}

// here puts a label before what is added next.
func (b *builder) here(label string) {
	if b.label != "" { // two labels in one place
		b.add(asm.Mov.Reg(asm.R6, asm.R6))
	}
	b.label = label
}

// clear zeroes the frame but for the command's address, so that the kernel's
// verifier lets it be read.
func (b *builder) clear() {
	b.add(asm.Mov.Imm(asm.R1, 0))
	for at := int16(stEnd); at < 0; at += 8 {
		if at != stCmd {
			b.add(asm.StoreMem(asm.RFP, at, asm.R1, asm.DWord))
		}
	}
}

// lookup finds the element with the key at that place of the stack: R0 is its
// address, or 0. R1 to R5 are lost, as by every call.
func (b *builder) lookup(fd int, key int32) {
	b.add(
		asm.LoadMapPtr(asm.R1, fd),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
	)
}

// update sets the element with the key at that place of the stack to the value
// that R3 points to. R0 is 0 or a negative errno.
func (b *builder) update(fd int, key int32, flags int32) {
	b.add(
		asm.LoadMapPtr(asm.R1, fd),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key),
		asm.Mov.Imm(asm.R4, flags),
		asm.FnMapUpdateElem.Call(),
	)
}

// atomically is an atomic operation on dst + off; a fetching one leaves the old
// value in src. The operation is given as the instruction's constant too, where
// the kernel expects it: cilium/ebpf 0.22 writes the constant it finds there,
// and so makes a plain addition of every other operation.
func atomically(op asm.AtomicOp, dst, src asm.Register, size asm.Size, off int16) asm.Instruction {
	i := op.Mem(dst, src, size, off)
	i.Constant = int64(op >> 8)
	return i
}

// count adds n to a counter at base + off.
func (b *builder) count(base asm.Register, off int16, n int32) {
	b.add(
		asm.Mov.Imm(asm.R1, n),
		atomically(asm.AddAtomic, base, asm.R1, asm.DWord, off),
	)
}

// wanted is a member to read, and where to on the stack.
type wanted struct {
	field string
	dst   int32
}

// read copies members of one structure, whose address is at that place of the
// stack, to the stack. Members that lie side by side in both are read at once.
// One that the layout doesn't have is skipped.
func (b *builder) read(base int32, want ...wanted) {
	type span struct {
		src, size int
		dst       int32
	}
	var spans []span
	for _, w := range want {
		f, ok := b.layout.Fields[w.field]
		if !ok {
			continue
		}
		if n := len(spans) - 1; n >= 0 && f.Bits == 0 &&
			spans[n].src+spans[n].size == f.Offset && spans[n].dst+int32(spans[n].size) == w.dst {
			spans[n].size += f.Size
			continue
		}
		spans = append(spans, span{f.Offset, f.Size, w.dst})
	}
	for _, s := range spans {
		b.add(
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, s.dst),
			asm.Mov.Imm(asm.R2, int32(s.size)),
			asm.LoadMem(asm.R3, asm.RFP, int16(base), asm.DWord), asm.Add.Imm(asm.R3, int32(s.src)),
			asm.FnProbeReadKernel.Call(),
			asm.LoadMem(asm.R1, asm.RFP, stFault, asm.Word), asm.Or.Reg(asm.R1, asm.R0),
			asm.StoreMem(asm.RFP, stFault, asm.R1, asm.Word),
		)
	}
}

// bit is the mask of a bit field in its byte, or of all of a plain byte.
func (l *Layout) bit(field string) uint8 {
	f, ok := l.Fields[field]
	switch {
	case !ok:
		return 0
	case f.Bits == 0:
		return 0xff
	}
	return uint8((1<<f.Bits - 1) << f.Bit)
}
