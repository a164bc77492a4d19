package probe

import (
	"github.com/cilium/ebpf/asm"
)

const (
	updateAny     = 0
	updateNoExist = 1
	eexist        = -17
)

// loadKey fills the stack's device key, from the scsi_cmnd whose address is on
// the stack.
func (b *builder) loadKey() {
	b.read(stCmd, wanted{"scsi_cmnd.device", stDevice})
	b.read(stDevice, wanted{"scsi_device.host", stHost})
	b.read(stDevice,
		wanted{"scsi_device.id", stKey + keyID},
		wanted{"scsi_device.channel", stKey + keyChannel},
		wanted{"scsi_device.lun", stKey + keyLUN})
	b.read(stHost, wanted{"Scsi_Host.host_no", stHostNo})
	if b.layout.has("Scsi_Host.shost_gendev.kobj.sd") && b.layout.has("kernfs_node.id") {
		b.read(stHost, wanted{"Scsi_Host.shost_gendev.kobj.sd", stFolder})
		b.read(stFolder, wanted{"kernfs_node.id", stKey + keyHostID})
	}
}

// keepHostNo stores the host number in the device record at base.
func (b *builder) keepHostNo(base asm.Register) {
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, stHostNo, asm.Word),
		asm.StoreMem(base, devHostNo, asm.R1, asm.Word),
	)
}

// begin loads the program's first argument, plus an offset, to R6 and the
// stack, and the control record to R9.
func (b *builder) begin(offset int32) {
	b.add(asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord))
	if offset != 0 {
		b.add(asm.Add.Imm(asm.R6, offset))
	}
	b.add(
		asm.StoreImm(asm.RFP, stZero, 0, asm.Word),
		asm.StoreMem(asm.RFP, stCmd, asm.R6, asm.DWord),
	)
	b.lookup(b.maps.control, stZero)
	b.add(
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Reg(asm.R9, asm.R0),
	)
}

// element looks up an element and makes it, zeroed, where it isn't there: R0
// is its address. Where there is no room the event is counted as lost.
func (b *builder) element(fd int, key int32, lost int16, name string) {
	b.lookup(fd, key)
	b.add(asm.JNE.Imm(asm.R0, 0, name+"-found"))
	b.lookup(b.maps.zero, stZero)
	b.add(asm.JEq.Imm(asm.R0, 0, "exit"), asm.Mov.Reg(asm.R3, asm.R0))
	b.update(fd, key, updateNoExist) // or another CPU was first
	b.lookup(fd, key)
	b.add(asm.JNE.Imm(asm.R0, 0, name+"-found"))
	b.count(asm.R9, lost, 1)
	b.add(asm.Ja.Label("exit"))
	b.here(name + "-found")
}

func (b *builder) end() {
	b.here("exit")
	b.add(asm.Mov.Imm(asm.R0, 0), asm.Return())
}

// copy moves whole words between two places; the source is on the stack or in
// a map.
func (b *builder) copy(dst asm.Register, to int16, src asm.Register, from int16, bytes int) {
	for i := int16(0); i < int16(bytes); i += 8 {
		b.add(
			asm.LoadMem(asm.R1, src, from+i, asm.DWord),
			asm.StoreMem(dst, to+i, asm.R1, asm.DWord),
		)
	}
}

// startProgram runs when a command is about to be given to its driver.
func (b *builder) startProgram() asm.Instructions {
	b.begin(0)
	b.clear()
	b.loadKey()
	b.read(stCmd, wanted{"scsi_cmnd.budget_token", stToken})
	b.read(stDevice,
		wanted{"scsi_device.budget_map.depth", stDepth},
		wanted{"scsi_device.budget_map.shift", stDepth + 4},
		wanted{"scsi_device.budget_map.map", stMap},
		wanted{"scsi_device.queue_depth", stQueueDepth})
	b.add(
		asm.Mov.Reg(asm.R1, asm.R6), asm.Sub.Imm(asm.R1, int32(b.layout.RequestSize)),
		asm.StoreMem(asm.RFP, stRequest, asm.R1, asm.DWord),
	)
	b.read(stRequest, wanted{"request.tag", stTag}, wanted{"request.mq_hctx", stQueue})
	hasQueue := b.layout.has("request.mq_hctx") && b.layout.has("blk_mq_hw_ctx.queue_num")
	if hasQueue {
		b.read(stQueue, wanted{"blk_mq_hw_ctx.queue_num", stQueueNo})
	}

	b.element(b.maps.devices, stKey, ctlLostDevice, "device")
	b.add(asm.Mov.Reg(asm.R7, asm.R0))
	b.keepHostNo(asm.R7)
	b.enterFlight()
	b.noteMap()
	if hasQueue {
		b.noteQueue()
	}
	b.notePhase()

	b.add(
		asm.LoadMem(asm.R1, asm.RFP, stFault, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "exit"),
	)
	b.count(asm.R9, ctlFaults, 1)
	b.end()
	return b.ins
}

// enterFlight remembers the command and counts it in flight, for the device
// whose record R7 points to. The stack's count is what is in flight with it.
func (b *builder) enterFlight() {
	b.add(asm.FnKtimeGetNs.Call(), asm.StoreMem(asm.RFP, stCommand+cmdStarted, asm.R0, asm.DWord))
	b.copy(asm.RFP, stCommand+cmdToken, asm.RFP, stToken, 8)
	b.add(asm.LoadMem(asm.R1, asm.RFP, stQueueNo, asm.Word), asm.StoreMem(asm.RFP, stCommand+cmdQueue, asm.R1, asm.Word))
	b.copy(asm.RFP, stCommand, asm.RFP, stKey, keySize)
	b.add(asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, stCommand))
	b.update(b.maps.commands, stCmd, updateNoExist)
	b.add(
		asm.JEq.Imm(asm.R0, 0, "entered"),
		asm.JEq.Imm(asm.R0, eexist, "stale"),
	)
	b.count(asm.R9, ctlLostCommand, 1)
	b.add(asm.Ja.Label("exit"))

	// It was started before, and its end was not seen: it did end, since a
	// scsi_cmnd isn't used twice at once.
	b.here("stale")
	b.lookup(b.maps.commands, stCmd)
	b.add(asm.JEq.Imm(asm.R0, 0, "renew"), asm.Mov.Reg(asm.R8, asm.R0))
	b.copy(asm.RFP, stCommand, asm.R8, 0, keySize)
	b.add(
		asm.LoadMem(asm.R1, asm.R8, cmdState, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "stale-device"),
	)
	b.count(asm.R9, ctlTimedOut, -1)
	b.here("stale-device")
	b.lookup(b.maps.devices, stCommand)
	b.add(asm.JEq.Imm(asm.R0, 0, "renew"))
	b.count(asm.R0, devInFlight, -1)
	b.count(asm.R0, devStale, 1)
	b.here("renew")
	b.copy(asm.RFP, stCommand, asm.RFP, stKey, keySize)
	b.add(asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, stCommand))
	b.update(b.maps.commands, stCmd, updateAny)

	b.here("entered")
	b.add(
		asm.Mov.Imm(asm.R1, 1),
		atomically(asm.FetchAdd, asm.R7, asm.R1, asm.DWord, devInFlight),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, stCount, asm.R1, asm.DWord),
	)
}

// noteMap keeps what the device's map is now, and counts its coming and going.
func (b *builder) noteMap() {
	b.copy(asm.R7, devMapDepth, asm.RFP, stDepth, 8)
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, stQueueDepth, asm.Half),
		asm.StoreMem(asm.R7, devQueueDepth, asm.R1, asm.Half),

		asm.Mov.Imm(asm.R1, mapAllocated),
		asm.LoadMem(asm.R2, asm.RFP, stMap, asm.DWord),
		asm.JNE.Imm(asm.R2, 0, "map-state"),
		asm.Mov.Imm(asm.R1, mapElided),
	)
	b.here("map-state")
	b.add(
		asm.Mov.Reg(asm.R2, asm.R1),
		atomically(asm.Xchg, asm.R7, asm.R1, asm.Word, devMapState),
		asm.JEq.Imm(asm.R1, mapUnknown, "map-same"),
		asm.JEq.Reg(asm.R1, asm.R2, "map-same"),
	)
	b.count(asm.R7, devMapChanges, 1)
	b.here("map-same")
}

// noteQueue counts the start for its hardware queue.
func (b *builder) noteQueue() {
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, stQueueNo, asm.Word),
		asm.JLT.Imm(asm.R1, maxQueues, "queue"),
		asm.Mov.Imm(asm.R1, maxQueues),
	)
	b.here("queue")
	b.add(
		asm.LSh.Imm(asm.R1, 3),
		asm.Mov.Reg(asm.R2, asm.R7), asm.Add.Reg(asm.R2, asm.R1),
		asm.Mov.Imm(asm.R1, 1),
		atomically(asm.AddAtomic, asm.R2, asm.R1, asm.DWord, devQueues),
	)
}

// notePhase keeps the extremes of this CPU and phase. The program doesn't
// interrupt itself on a CPU, so plain loads and stores do.
func (b *builder) notePhase() {
	b.lookup(b.maps.phase, stZero)
	b.add(asm.JEq.Imm(asm.R0, 0, "exit"))
	b.copy(asm.RFP, stPhase, asm.R0, 0, 8)
	b.element(b.maps.phases, stKey, ctlLostPhase, "phase")
	b.add(
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R1, asm.R8, phStarts, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "compare"),
	)

	// The CPU's first command of the phase: look at the host too.
	b.read(stHost,
		wanted{"Scsi_Host.can_queue", stCanQueue},
		wanted{"Scsi_Host.nr_hw_queues", stHWQueues},
		wanted{"Scsi_Host.tag_set.nr_hw_queues", stTagQueues},
		wanted{"Scsi_Host.cmd_per_lun", stCmdPerLUN},
		wanted{"Scsi_Host.host_tagset", stHostTagset},
		wanted{"Scsi_Host.needs_budget_token", stNeedsToken})
	move := func(from, to int16, size asm.Size) {
		b.add(asm.LoadMem(asm.R1, asm.RFP, from, size), asm.StoreMem(asm.R7, to, asm.R1, size))
	}
	move(stCanQueue, devCanQueue, asm.Word)
	move(stHWQueues, devHWQueues, asm.Word)
	move(stTagQueues, devTagQueues, asm.Word)
	move(stCmdPerLUN, devCmdPerLUN, asm.Half)
	move(stHostTagset, devHostTagset, asm.Byte)
	move(stNeedsToken, devNeedsToken, asm.Byte)
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, stTag, asm.Word),
		asm.StoreMem(asm.R8, phMinTag, asm.R1, asm.Word),
		asm.StoreMem(asm.R8, phMaxTag, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.RFP, stToken, asm.Word),
		asm.StoreMem(asm.R8, phMinToken, asm.R1, asm.Word),
		asm.StoreMem(asm.R8, phMaxToken, asm.R1, asm.Word),
	)

	b.here("compare")
	extreme := func(from int16, keep asm.JumpOp, to int16, label string) {
		b.add(
			asm.LoadMem(asm.R1, asm.RFP, from, asm.Word),
			asm.LoadMem(asm.R2, asm.R8, to, asm.Word),
			keep.Reg32(asm.R2, asm.R1, label),
			asm.StoreMem(asm.R8, to, asm.R1, asm.Word),
		)
		b.here(label)
	}
	extreme(stTag, asm.JSLE, phMinTag, "min-tag")
	extreme(stTag, asm.JSGE, phMaxTag, "max-tag")
	extreme(stToken, asm.JSLE, phMinToken, "min-token")
	extreme(stToken, asm.JSGE, phMaxToken, "max-token")
	extreme(stCount, asm.JSGE, phPeak, "peak")

	bump := func(off int16) {
		b.add(
			asm.LoadMem(asm.R1, asm.R8, off, asm.DWord),
			asm.Add.Imm(asm.R1, 1),
			asm.StoreMem(asm.R8, off, asm.R1, asm.DWord),
		)
	}
	bump(phStarts)
	b.add(
		asm.LoadMem(asm.R1, asm.RFP, stMap, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "without"),
	)
	bump(phWithMap)
	b.add(asm.Ja.Label("phased"))
	b.here("without")
	bump(phWithoutMap)
	b.here("phased")
}

// leaveFlight ends the program after it has looked up the command in flight:
// R0 is its record. The device's counter at off says how it ended.
func (b *builder) leaveFlight(off int16) {
	b.add(
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R7, asm.R8, cmdState, asm.DWord),
	)
	b.copy(asm.RFP, stKey, asm.R8, 0, keySize)
	b.add(
		asm.LoadMapPtr(asm.R1, b.maps.commands),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, stCmd),
		asm.FnMapDeleteElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "exit"), // another CPU was first
		asm.JEq.Imm(asm.R7, 0, "in-time"),
	)
	b.count(asm.R9, ctlTimedOut, -1)
	b.here("in-time")
	b.lookup(b.maps.devices, stKey)
	b.add(asm.JEq.Imm(asm.R0, 0, "exit"))
	b.count(asm.R0, devInFlight, -1)
	b.count(asm.R0, off, 1)
	b.add(asm.Ja.Label("exit"))
}

// doneProgram runs when a driver has ended a command.
func (b *builder) doneProgram() asm.Instructions {
	b.begin(0)
	b.lookup(b.maps.commands, stCmd)
	b.add(asm.JEq.Imm(asm.R0, 0, "unmatched"))
	b.leaveFlight(devDones)

	// Begun before the watch, or ended by the SCSI core without having been
	// given to the driver.
	b.here("unmatched")
	b.clear()
	b.loadKey()
	b.element(b.maps.devices, stKey, ctlLostDevice, "device")
	b.keepHostNo(asm.R0)
	b.count(asm.R0, devUnmatched, 1)
	b.end()
	return b.ins
}

// rejectedProgram runs when the driver didn't take a command. It will be
// started again.
func (b *builder) rejectedProgram() asm.Instructions {
	b.begin(0)
	b.lookup(b.maps.commands, stCmd)
	b.add(asm.JEq.Imm(asm.R0, 0, "exit"))
	b.leaveFlight(devRejected)
	b.end()
	return b.ins
}

// timeoutProgram runs when a command took too long. It is in flight still:
// the driver may want more time, or the error handler will take it back.
func (b *builder) timeoutProgram() asm.Instructions {
	b.begin(0)
	b.lookup(b.maps.commands, stCmd)
	b.add(
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Reg(asm.R8, asm.R0),
	)
	b.copy(asm.RFP, stKey, asm.R8, 0, keySize)
	b.add(
		asm.Mov.Imm(asm.R1, 1),
		atomically(asm.Xchg, asm.R8, asm.R1, asm.DWord, cmdState),
		asm.JNE.Imm(asm.R1, 0, "again"),
	)
	b.count(asm.R9, ctlTimedOut, 1)
	b.here("again")
	b.lookup(b.maps.devices, stKey)
	b.add(asm.JEq.Imm(asm.R0, 0, "exit"))
	b.count(asm.R0, devTimedOut, 1)
	b.end()
	return b.ins
}

// endedProgram runs when the block layer ends or requeues a request, of any
// kind. It matters for a command that has timed out: the error handler ends
// that without scsi_dispatch_cmd_done.
func (b *builder) endedProgram() asm.Instructions {
	b.begin(int32(b.layout.RequestSize))
	b.add(
		asm.LoadMem(asm.R1, asm.R9, ctlTimedOut, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "exit"),
	)
	b.lookup(b.maps.commands, stCmd)
	b.add(
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.LoadMem(asm.R1, asm.R0, cmdState, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "exit"),
	)
	b.leaveFlight(devEnded)
	b.end()
	return b.ins
}
