package ata

// Protocol is how a command moves its data (ACS-4 4, SATA 3.5 11).
type Protocol uint8

const (
	NonData Protocol = iota
	PIODataIn
	PIODataOut
	DMADataIn
	DMADataOut
	FPDMADataIn
	FPDMADataOut
	Diagnostic
)

// Queued tells whether commands of the protocol are queued by tag.
func (p Protocol) Queued() bool { return p >= FPDMADataIn && p <= FPDMADataOut }

// In and Out tell which way the data goes.
func (p Protocol) In() bool  { return p == PIODataIn || p == DMADataIn || p == FPDMADataIn }
func (p Protocol) Out() bool { return p == PIODataOut || p == DMADataOut || p == FPDMADataOut }

// command is a command that a drive may have.
type command struct {
	name     string // as in the standard
	code     byte
	protocol Protocol
	class    class

	// length is how many bytes of data it moves, 0 if it will be refused. nil is none.
	length func(d *Drive, t *Taskfile) uint64

	// run does the command. It sets fields of the Answer other than Status and Error
	// where the standard has any.
	run func(d *Drive, t *Task) failure

	// when says which drives have it. nil is all.
	when func(d *Drive) bool
}

// class says how a command stands to the state of the drive.
type class uint8

const (
	// medium needs the medium to turn.
	medium class = 1 << iota

	// whileLocked is done although the drive is locked (ACS-4 table 9).
	whileLocked

	// whileSanitized is done in every state of the Sanitize feature set
	// (ACS-4 4.17.10).
	whileSanitized

	// remembers changes what outlives a restart.
	remembers

	// lba28 has 28 bits for its address, which have to be an LBA.
	lba28

	// ext has 48 bits for its address, and 16 for its count.
	ext
)

// commands is every command there is.
func commands() []command {
	const always = whileLocked | whileSanitized
	return []command{
		{name: "NOP", code: 0x00, protocol: NonData, class: whileLocked, run: (*Drive).nop},
		{name: "DATA SET MANAGEMENT", code: 0x06, protocol: DMADataOut, class: medium | ext, length: trimLength, run: (*Drive).trim, when: trims},
		{name: "REQUEST SENSE DATA EXT", code: requestSenseDataExt, protocol: NonData, class: always, run: (*Drive).requestSense},
		{name: "READ SECTOR(S)", code: 0x20, protocol: PIODataIn, class: medium | lba28, length: blocksLength, run: (*Drive).read},
		{name: "READ SECTOR(S) EXT", code: 0x24, protocol: PIODataIn, class: medium | ext, length: blocksLength, run: (*Drive).read},
		{name: "READ DMA EXT", code: 0x25, protocol: DMADataIn, class: medium | ext, length: blocksLength, run: (*Drive).read},
		{name: "READ MULTIPLE EXT", code: 0x29, protocol: PIODataIn, class: medium | ext, length: blocksLength, run: (*Drive).readMultiple},
		{name: "READ LOG EXT", code: readLogExt, protocol: PIODataIn, class: always | ext, length: pagesLength, run: (*Drive).readLog},
		{name: "WRITE SECTOR(S)", code: 0x30, protocol: PIODataOut, class: medium | lba28, length: blocksLength, run: (*Drive).write},
		{name: "WRITE SECTOR(S) EXT", code: 0x34, protocol: PIODataOut, class: medium | ext, length: blocksLength, run: (*Drive).write},
		{name: "WRITE DMA EXT", code: 0x35, protocol: DMADataOut, class: medium | ext, length: blocksLength, run: (*Drive).write},
		{name: "WRITE MULTIPLE EXT", code: 0x39, protocol: PIODataOut, class: medium | ext, length: blocksLength, run: (*Drive).writeMultiple},
		{name: "WRITE DMA FUA EXT", code: 0x3d, protocol: DMADataOut, class: medium | ext, length: blocksLength, run: (*Drive).writeFUA},
		{name: "WRITE LOG EXT", code: 0x3f, protocol: PIODataOut, class: whileLocked | remembers | ext, length: pagesLength, run: (*Drive).writeLog},
		{name: "READ VERIFY SECTOR(S)", code: 0x40, protocol: NonData, class: medium | lba28, run: (*Drive).readVerify},
		{name: "READ VERIFY SECTOR(S) EXT", code: 0x42, protocol: NonData, class: medium | ext, run: (*Drive).readVerify},
		{name: "WRITE UNCORRECTABLE EXT", code: 0x45, protocol: NonData, class: medium | ext, run: (*Drive).writeUncorrectable},
		{name: "READ LOG DMA EXT", code: readLogDMAExt, protocol: DMADataIn, class: always | ext, length: pagesLength, run: (*Drive).readLog},
		{name: "WRITE LOG DMA EXT", code: 0x57, protocol: DMADataOut, class: whileLocked | remembers | ext, length: pagesLength, run: (*Drive).writeLog},
		{name: "TRUSTED RECEIVE", code: 0x5c, protocol: PIODataIn, class: whileLocked, length: trustedLength, run: (*Drive).trustedReceive},
		{name: "TRUSTED RECEIVE DMA", code: 0x5d, protocol: DMADataIn, class: whileLocked, length: trustedLength, run: (*Drive).trustedReceive},
		{name: "READ FPDMA QUEUED", code: 0x60, protocol: FPDMADataIn, class: medium | ext, length: blocksLength, run: (*Drive).readQueued, when: queues},
		{name: "WRITE FPDMA QUEUED", code: 0x61, protocol: FPDMADataOut, class: medium | ext, length: blocksLength, run: (*Drive).writeQueued, when: queues},
		{name: "SEND FPDMA QUEUED", code: 0x64, protocol: FPDMADataOut, class: medium | ext, length: sendLength, run: (*Drive).sendQueued, when: queuesTrim},
		{name: "RECEIVE FPDMA QUEUED", code: 0x65, protocol: FPDMADataIn, class: ext, length: receiveLength, run: (*Drive).receiveQueued, when: queues},
		{name: "ACCESSIBLE MAX ADDRESS CONFIGURATION", code: 0x78, protocol: NonData, class: ext | remembers, run: (*Drive).configureMaxAddress},
		{name: "EXECUTE DEVICE DIAGNOSTIC", code: 0x90, protocol: Diagnostic, class: always, run: (*Drive).diagnostic},
		{name: "SMART", code: 0xb0, protocol: NonData, class: whileLocked | remembers, run: (*Drive).smart},
		{name: "SANITIZE DEVICE", code: 0xb4, protocol: NonData, class: whileSanitized | remembers | ext, run: (*Drive).sanitize},
		{name: "READ MULTIPLE", code: 0xc4, protocol: PIODataIn, class: medium | lba28, length: blocksLength, run: (*Drive).readMultiple},
		{name: "WRITE MULTIPLE", code: 0xc5, protocol: PIODataOut, class: medium | lba28, length: blocksLength, run: (*Drive).writeMultiple},
		{name: "SET MULTIPLE MODE", code: 0xc6, protocol: NonData, class: whileLocked, run: (*Drive).setMultiple},
		{name: "WRITE MULTIPLE FUA EXT", code: writeMultipleFUA, protocol: PIODataOut, class: medium | ext, length: blocksLength, run: (*Drive).writeMultiple},
		{name: "READ DMA", code: 0xc8, protocol: DMADataIn, class: medium | lba28, length: blocksLength, run: (*Drive).read},
		{name: "WRITE DMA", code: 0xca, protocol: DMADataOut, class: medium | lba28, length: blocksLength, run: (*Drive).write},
		{name: "STANDBY IMMEDIATE", code: 0xe0, protocol: NonData, class: whileLocked, run: (*Drive).standbyImmediate},
		{name: "IDLE IMMEDIATE", code: 0xe1, protocol: NonData, class: always, run: (*Drive).idleImmediate},
		{name: "STANDBY", code: 0xe2, protocol: NonData, class: whileLocked, run: (*Drive).standby},
		{name: "IDLE", code: 0xe3, protocol: NonData, class: whileLocked, run: (*Drive).idle},
		{name: "READ BUFFER", code: 0xe4, protocol: PIODataIn, class: whileLocked, length: oneBlock, run: (*Drive).readBuffer},
		{name: "CHECK POWER MODE", code: 0xe5, protocol: NonData, class: always, run: (*Drive).checkPower},
		{name: "SLEEP", code: 0xe6, protocol: NonData, class: whileLocked, run: (*Drive).sleep},
		{name: "FLUSH CACHE", code: 0xe7, protocol: NonData, class: medium, run: (*Drive).flushCache},
		{name: "WRITE BUFFER", code: 0xe8, protocol: PIODataOut, class: whileLocked, length: oneBlock, run: (*Drive).writeBuffer},
		{name: "READ BUFFER DMA", code: 0xe9, protocol: DMADataIn, class: whileLocked, length: oneBlock, run: (*Drive).readBuffer},
		{name: "FLUSH CACHE EXT", code: 0xea, protocol: NonData, class: medium | ext, run: (*Drive).flushCache},
		{name: "WRITE BUFFER DMA", code: 0xeb, protocol: DMADataOut, class: whileLocked, length: oneBlock, run: (*Drive).writeBuffer},
		{name: "IDENTIFY DEVICE", code: 0xec, protocol: PIODataIn, class: always, length: oneBlock, run: (*Drive).identify},
		{name: "SET FEATURES", code: 0xef, protocol: NonData, class: whileLocked, run: (*Drive).setFeatures},
		{name: "SECURITY SET PASSWORD", code: 0xf1, protocol: PIODataOut, class: remembers, length: oneBlock, run: (*Drive).securitySetPassword},
		{name: "SECURITY UNLOCK", code: 0xf2, protocol: PIODataOut, class: whileLocked, length: oneBlock, run: (*Drive).securityUnlock},
		{name: "SECURITY ERASE PREPARE", code: securityErasePrepare, protocol: NonData, class: whileLocked, run: (*Drive).securityPrepare},
		{name: "SECURITY ERASE UNIT", code: securityEraseUnit, protocol: PIODataOut, class: whileLocked | remembers | medium, length: oneBlock, run: (*Drive).securityErase},
		{name: "SECURITY FREEZE LOCK", code: 0xf5, protocol: NonData, run: (*Drive).securityFreeze},
		{name: "SECURITY DISABLE PASSWORD", code: 0xf6, protocol: PIODataOut, class: remembers, length: oneBlock, run: (*Drive).securityDisable},
	}
}

// smartCommands are those of SMART's subcommands that move data, which have protocols
// of their own.
func smartCommands() map[byte]*command {
	list := map[byte]*command{
		smartReadData:       {protocol: PIODataIn, length: oneBlock},
		smartReadThresholds: {protocol: PIODataIn, length: oneBlock},
		smartReadLog:        {protocol: PIODataIn, length: smartPages},
		smartWriteLog:       {protocol: PIODataOut, length: smartPages},
	}
	for _, c := range list {
		c.name, c.code, c.class, c.run = "SMART", 0xb0, whileLocked, (*Drive).smart
	}
	list[smartWriteLog].class |= remembers
	return list
}

// wordBlock is what all but the medium counts in: 512 bytes.
const wordBlock = 512

func oneBlock(*Drive, *Taskfile) uint64 { return wordBlock }

// find returns the command that t asks for, nil if the drive doesn't have it.
func (d *Drive) find(t *Taskfile) *command {
	c := d.commands[t.Command]
	if c != nil && t.Command == 0xb0 {
		if s, ok := d.smartData[byte(t.Feature)]; ok {
			return s
		}
	}
	return c
}

// Protocol returns the protocol of a command, and false if the drive doesn't have it.
func (d *Drive) Protocol(t *Taskfile) (Protocol, bool) {
	c := d.find(t)
	if c == nil {
		return NonData, false
	}
	return c.protocol, true
}

// DataLength says how many bytes of data a command moves, none if it will be refused.
func (d *Drive) DataLength(t *Taskfile) (out, in uint64) {
	c := d.find(t)
	if c == nil || c.length == nil {
		return 0, 0
	}
	n := c.length(d, t)
	if c.protocol.Out() {
		return n, 0
	}
	return 0, n
}

// Command is a command that a drive may have.
type Command struct {
	Name     string // as in the standard: "READ DMA EXT"
	Code     byte
	Protocol Protocol
}

// Commands lists every command that a drive of some options has.
func Commands() (list []Command) {
	for _, c := range commands() {
		list = append(list, Command{c.name, c.code, c.protocol})
	}
	return list
}
