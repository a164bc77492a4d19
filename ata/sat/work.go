package sat

import (
	"encoding/binary"

	"lunlab/ata"
	"lunlab/lun"
)

// Commands of the drive that the translation makes use of.
const (
	dataSetManagement   = 0x06
	requestSenseData    = 0x0b
	readDMAExt          = 0x25
	readLogExt          = 0x2f
	writeDMAExt         = 0x35
	writeDMAFUAExt      = 0x3d
	readVerifyExt       = 0x42
	trustedReceive      = 0x5c
	configureMaxAddress = 0x78
	readFPDMAQueued     = 0x60
	writeFPDMAQueued    = 0x61
	sendFPDMAQueued     = 0x64
	smart               = 0xb0
	sanitizeDevice      = 0xb4
	standbyImmediate    = 0xe0
	idleImmediate       = 0xe1
	checkPowerMode      = 0xe5
	flushCacheExt       = 0xea
	identifyDevice      = 0xec
	setFeatures         = 0xef
	securityEraseUnit   = 0xf4

	deviceLBA = 0x40
	deviceFUA = 0x80

	logNCQError = 0x10
)

// work is a task that the translation issues.
type work struct {
	ata.Task
	cancel <-chan struct{}

	// log is what the NCQ Command Error log said of a queued command, sense what the
	// drive said of another, if it did.
	log    [512]byte
	logged bool
	key    lun.SenseKey
	code   uint16

	cancelled bool
	one       [1][]byte
}

func (w *work) failed() bool { return w.cancelled || w.Failed() }

// take returns a work for a command.
func (u *Unit) take(c *lun.Command, t ata.Taskfile) *work {
	w := u.works.Get().(*work)
	w.Taskfile, w.DataIn, w.DataOut, w.cancel = t, nil, nil, nil
	if c != nil {
		w.cancel = c.Cancel
	}
	return w
}

func (u *Unit) put(w *work) {
	w.DataIn, w.DataOut, w.cancel, w.one[0] = nil, nil, nil, nil
	u.works.Put(w)
}

// do has the drive do a task. If it fails, what there is to know of that is asked for.
func (u *Unit) do(w *work) *work {
	w.logged, w.key, w.code, w.cancelled = false, 0, 0, false
	p, _ := u.drive.Protocol(&w.Taskfile)
	for {
		slot, ok := u.slots.acquire(!p.Queued(), w.cancel)
		if !ok {
			w.cancelled = true
			return w
		}
		if p.Queued() {
			w.Count = w.Count&^0xf8 | uint16(slot)<<3
		}
		u.drive.Do(&w.Task)
		switch {
		case !w.Failed():
		case w.Ending == ata.NoAnswer || w.Halted:
			// Another one failed, or there was a reset.
			u.slots.release(slot)
			continue
		case p.Queued():
			u.slots.convert(slot)
			slot = alone
			u.readErrorLog(w)
		case w.Answer.Status&ata.StatusSense != 0:
			u.requestSense(w)
		}
		u.slots.release(slot)
		return w
	}
}

// readErrorLog learns why a queued command failed, and has the drive take commands again.
// The drive is ours alone.
func (u *Unit) readErrorLog(w *work) {
	t := ata.Task{Taskfile: ata.Taskfile{Command: readLogExt, Count: 1, LBA: logNCQError}, DataIn: [][]byte{w.log[:]}}
	u.drive.Do(&t)
	if t.Failed() {
		u.drive.Reset(ata.SoftReset)
		return
	}
	w.logged = true
	b := w.log[:]
	w.Answer = ata.Registers{
		Status: b[2], Error: b[3], Device: b[7], Count: binary.LittleEndian.Uint16(b[12:]),
		LBA: uint64(b[4]) | uint64(b[5])<<8 | uint64(b[6])<<16 | uint64(b[8])<<24 | uint64(b[9])<<32 | uint64(b[10])<<40,
	}
	if b[2]&ata.StatusSense != 0 {
		w.key, w.code = lun.SenseKey(b[14]), be16(b[15:])
	}
}

// requestSense asks for the sense data of a command that failed. The drive is ours alone.
func (u *Unit) requestSense(w *work) {
	t := ata.Task{Taskfile: ata.Taskfile{Command: requestSenseData}}
	if u.drive.Do(&t); !t.Failed() {
		w.key, w.code = lun.SenseKey(t.Answer.LBA>>16&0x0f), uint16(t.Answer.LBA)
	}
}

// translate is the sense data for a command that failed (SAT-5 11): what the drive says,
// or else what its Status and Error come to.
func (w *work) translate() lun.Sense {
	if w.cancelled {
		return aborted
	}
	r := &w.Answer
	s := lun.Sense{Key: w.key, Code: w.code}
	if s.Key == lun.NoSense {
		switch {
		case r.Status&ata.StatusDF != 0:
			s = lun.Sense{Key: lun.HardwareError, Code: lun.ASCInternalTargetFailure}
		case r.Error&ata.ErrorICRC != 0:
			s = lun.Sense{Key: lun.AbortedCommand, Code: ascInterfaceCRC}
		case r.Error&ata.ErrorUNC != 0:
			s = lun.Sense{Key: lun.MediumError, Code: lun.ASCUnrecoveredReadError}
		case r.Error&ata.ErrorIDNF != 0:
			s = lun.Sense{Key: lun.IllegalRequest, Code: lun.ASCLBAOutOfRange}
		default:
			s = lun.Sense{Key: lun.AbortedCommand}
		}
	}
	if r.Error&(ata.ErrorUNC|ata.ErrorIDNF) != 0 {
		s.Info, s.HasInfo = r.LBA, true
	}
	return s
}

// ascInterfaceCRC is INFORMATION UNIT iuCRC ERROR DETECTED.
const ascInterfaceCRC = 0x4703

// run does a task for a command, without data or with that in w, and returns the sense
// data if it fails.
func (u *Unit) run(c *lun.Command, w *work) lun.Sense {
	defer u.put(w)
	u.do(w)
	if w.failed() {
		return w.translate()
	}
	return lun.Sense{}
}

// simple does a task without data.
func (u *Unit) simple(c *lun.Command, t ata.Taskfile) lun.Sense { return u.run(c, u.take(c, t)) }

// fetch does a task that reads len(b) bytes.
func (u *Unit) fetch(c *lun.Command, t ata.Taskfile, b []byte) lun.Sense {
	w := u.take(c, t)
	w.one[0] = b
	w.DataIn = w.one[:]
	return u.run(c, w)
}

// send does a task that writes b.
func (u *Unit) send(c *lun.Command, t ata.Taskfile, b []byte) lun.Sense {
	w := u.take(c, t)
	w.one[0] = b
	w.DataOut = w.one[:]
	return u.run(c, w)
}
