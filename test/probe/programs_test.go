package probe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf/asm"
)

// layout612 is Debian's 6.12 for amd64, as its BTF gives it.
func layout612() *Layout {
	return &Layout{
		RequestSize: 280,
		Fields: map[string]Field{
			"scsi_cmnd.device":               {Offset: 0, Size: 8},
			"scsi_cmnd.budget_token":         {Offset: 132, Size: 4},
			"scsi_device.host":               {Offset: 0, Size: 8},
			"scsi_device.id":                 {Offset: 144, Size: 4},
			"scsi_device.channel":            {Offset: 148, Size: 4},
			"scsi_device.lun":                {Offset: 152, Size: 8},
			"scsi_device.queue_depth":        {Offset: 112, Size: 2},
			"scsi_device.budget_map.depth":   {Offset: 48, Size: 4},
			"scsi_device.budget_map.shift":   {Offset: 52, Size: 4},
			"scsi_device.budget_map.map":     {Offset: 64, Size: 8},
			"Scsi_Host.host_no":              {Offset: 404, Size: 4},
			"Scsi_Host.shost_gendev.kobj.sd": {Offset: 576, Size: 8},
			"kernfs_node.id":                 {Offset: 96, Size: 8},
			"Scsi_Host.can_queue":            {Offset: 452, Size: 4},
			"Scsi_Host.cmd_per_lun":          {Offset: 456, Size: 2},
			"Scsi_Host.nr_hw_queues":         {Offset: 496, Size: 4},
			"Scsi_Host.tag_set.nr_hw_queues": {Offset: 284, Size: 4},
			"Scsi_Host.host_tagset":          {Offset: 505, Size: 1, Bit: 7, Bits: 1},
			"request.tag":                    {Offset: 32, Size: 4},
			"request.mq_hctx":                {Offset: 16, Size: 8},
			"blk_mq_hw_ctx.queue_num":        {Offset: 308, Size: 4},
		},
	}
}

// TestRecordOffsets holds the offsets that programs use against the structures
// that their records are read into.
func TestRecordOffsets(t *testing.T) {
	var (
		k deviceKey
		d deviceRecord
		c commandRecord
		p phaseKey
		r phaseRecord
		o controlRecord
	)
	for _, f := range []struct {
		name      string
		got, want uintptr
	}{
		{"keyHostID", keyHostID, unsafe.Offsetof(k.HostID)},
		{"keyID", keyID, unsafe.Offsetof(k.ID)},
		{"keyChannel", keyChannel, unsafe.Offsetof(k.Channel)},
		{"keyLUN", keyLUN, unsafe.Offsetof(k.LUN)},
		{"devDones", devDones, unsafe.Offsetof(d.Dones)},
		{"devRejected", devRejected, unsafe.Offsetof(d.Rejected)},
		{"devTimedOut", devTimedOut, unsafe.Offsetof(d.TimedOut)},
		{"devEnded", devEnded, unsafe.Offsetof(d.Ended)},
		{"devUnmatched", devUnmatched, unsafe.Offsetof(d.Unmatched)},
		{"devStale", devStale, unsafe.Offsetof(d.Stale)},
		{"devMapChanges", devMapChanges, unsafe.Offsetof(d.MapChanges)},
		{"devMapState", devMapState, unsafe.Offsetof(d.MapState)},
		{"devCanQueue", devCanQueue, unsafe.Offsetof(d.CanQueue)},
		{"devHWQueues", devHWQueues, unsafe.Offsetof(d.HWQueues)},
		{"devTagQueues", devTagQueues, unsafe.Offsetof(d.TagQueues)},
		{"devMapDepth", devMapDepth, unsafe.Offsetof(d.MapDepth)},
		{"devQueueDepth", devQueueDepth, unsafe.Offsetof(d.QueueDepth)},
		{"devCmdPerLUN", devCmdPerLUN, unsafe.Offsetof(d.CmdPerLUN)},
		{"devHostTagset", devHostTagset, unsafe.Offsetof(d.HostTagset)},
		{"devNeedsToken", devNeedsToken, unsafe.Offsetof(d.NeedsToken)},
		{"devHostNo", devHostNo, unsafe.Offsetof(d.HostNo)},
		{"devQueues", devQueues, unsafe.Offsetof(d.Queues)},
		{"cmdState", cmdState, unsafe.Offsetof(c.State)},
		{"cmdToken", cmdToken, unsafe.Offsetof(c.Token)},
		{"cmdToken + 4", cmdToken + 4, unsafe.Offsetof(c.Tag)},
		{"cmdQueue", cmdQueue, unsafe.Offsetof(c.Queue)},
		{"cmdStarted", cmdStarted, unsafe.Offsetof(c.Started)},
		{"stPhase", stPhase - stKey, unsafe.Offsetof(p.Phase)},
		{"phMinTag", phMinTag, unsafe.Offsetof(r.MinTag)},
		{"phMaxTag", phMaxTag, unsafe.Offsetof(r.MaxTag)},
		{"phMinToken", phMinToken, unsafe.Offsetof(r.MinToken)},
		{"phMaxToken", phMaxToken, unsafe.Offsetof(r.MaxToken)},
		{"phStarts", phStarts, unsafe.Offsetof(r.Starts)},
		{"phWithMap", phWithMap, unsafe.Offsetof(r.WithMap)},
		{"phWithoutMap", phWithoutMap, unsafe.Offsetof(r.WithoutMap)},
		{"ctlTimedOut", ctlTimedOut, unsafe.Offsetof(o.TimedOut)},
		{"ctlLostDevice", ctlLostDevice, unsafe.Offsetof(o.LostDevice)},
		{"ctlLostCommand", ctlLostCommand, unsafe.Offsetof(o.LostCommand)},
		{"ctlLostPhase", ctlLostPhase, unsafe.Offsetof(o.LostPhase)},
		{"ctlFaults", ctlFaults, unsafe.Offsetof(o.Faults)},
	} {
		if f.got != f.want {
			t.Errorf("%s: got %d, want %d", f.name, f.got, f.want)
		}
	}
	for _, s := range []struct {
		name      string
		got, want int
	}{
		{"keySize", keySize, binary.Size(k)},
		{"devSize", devSize, binary.Size(d)},
		{"cmdSize", cmdSize, binary.Size(c)},
		{"phaseKeySize", phaseKeySize, binary.Size(p)},
		{"phSize", phSize, binary.Size(r)},
		{"ctlSize", ctlSize, binary.Size(o)},
	} {
		if s.got != s.want {
			t.Errorf("%s: got %d, want %d", s.name, s.got, s.want)
		}
	}
	if stEnd%8 != 0 || stEnd < -512 {
		t.Errorf("the frame ends at %d: want a multiple of 8 within 512 bytes", stEnd)
	}
}

// assemble makes a program and encodes it as the kernel gets it.
func assemble(t *testing.T, l *Layout, of func(*builder) asm.Instructions) (asm.Instructions, []byte) {
	t.Helper()
	ins := of(&builder{layout: l, maps: mapFDs{3, 4, 5, 6, 7, 8}})
	var raw bytes.Buffer
	if err := ins.Marshal(&raw, binary.LittleEndian); err != nil {
		t.Fatalf("%v\n%v", err, ins)
	}
	return ins, raw.Bytes()
}

func TestProgramsAssemble(t *testing.T) {
	for _, k := range kinds {
		ins, _ := assemble(t, layout612(), k.make)
		if _, err := ins.SymbolOffsets(); err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
		labels, _ := ins.SymbolOffsets()
		for ref := range ins.ReferenceOffsets() {
			if _, ok := labels[ref]; !ok {
				t.Errorf("%s: a jump to %q, which isn't there", k.name, ref)
			}
		}
	}
}

// reads lists the reads of kernel memory as "offset+size".
func reads(ins asm.Instructions) []string {
	var list []string
	for i, in := range ins {
		if in.IsBuiltinCall() && in.Constant == int64(asm.FnProbeReadKernel) {
			list = append(list, fmt.Sprintf("%d+%d", ins[i-1].Constant, ins[i-3].Constant))
		}
	}
	return list
}

// TestStartReads holds the start program to the layout: each member is read at
// its offset, neighbours at once, and a member that the kernel doesn't have is
// not read.
func TestStartReads(t *testing.T) {
	l := layout612()
	ins, _ := assemble(t, l, (*builder).startProgram)
	want := "0+8 0+8 144+16 404+4 576+8 96+8 132+4 48+8 64+8 112+2 32+4 16+8 308+4 452+4 496+4 284+4 456+2 505+1"
	if got := strings.Join(reads(ins), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	for f := range map[string]bool{"scsi_device.queue_depth": true, "request.mq_hctx": true, "Scsi_Host.host_tagset": true, "kernfs_node.id": true} {
		delete(l.Fields, f)
	}
	l.Fields["Scsi_Host.needs_budget_token"] = Field{Offset: 506, Size: 1, Bit: 3, Bits: 1}
	l.Fields["scsi_device.lun"] = Field{Offset: 200, Size: 8}
	ins, _ = assemble(t, l, (*builder).startProgram)
	want = "0+8 0+8 144+8 200+8 404+4 132+4 48+8 64+8 32+4 452+4 496+4 284+4 456+2 506+1"
	if got := strings.Join(reads(ins), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestAtomicEncoding guards against an assembler that drops what makes an
// atomic operation fetch or exchange: the kernel would take it for an addition.
func TestAtomicEncoding(t *testing.T) {
	for _, c := range []struct {
		op   asm.AtomicOp
		want int32 // as in the kernel's instruction set: BPF_FETCH is 1
	}{
		{asm.AddAtomic, 0x00},
		{asm.FetchAdd, 0x01},
		{asm.Xchg, 0xe1},
	} {
		var raw bytes.Buffer
		i := atomically(c.op, asm.R7, asm.R1, asm.DWord, 0)
		if _, err := i.Marshal(&raw, binary.LittleEndian); err != nil {
			t.Fatal(err)
		}
		if got := int32(binary.LittleEndian.Uint32(raw.Bytes()[4:])); got != c.want {
			t.Errorf("%v: got %#x, want %#x", c.op, got, c.want)
		}
	}
}
