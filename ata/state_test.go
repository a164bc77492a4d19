package ata_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"lunlab/ata"
)

// TestLogs reads each page that the directories list, and none beyond.
func TestLogs(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{RotationRate: 5400})
	dir := h.log(0, 0, 1)
	if binary.LittleEndian.Uint16(dir) != 1 {
		t.Errorf("version %x", dir[:2])
	}
	want := []byte{0x03, 0x04, 0x07, 0x0c, 0x10, 0x11, 0x13, 0x30}
	for a := 1; a < 256; a++ {
		pages := binary.LittleEndian.Uint16(dir[2*a:])
		if a >= 0x80 && a < 0xa0 {
			if pages != 16 {
				t.Errorf("log %#x has %d pages", a, pages)
			}
		} else if (pages > 0) != slices.Contains(want, byte(a)) {
			t.Errorf("log %#x has %d pages", a, pages)
		}
		if pages > 0 {
			h.log(byte(a), pages-1, 1)
			dma := readLog(byte(a), 0, pages)
			dma.Command = 0x47
			h.good(dma, nil)
		}
		h.fails(readLog(byte(a), pages, 1), nil, ata.ErrorABRT)
		h.fails(readLog(byte(a), 0, pages+1), nil, ata.ErrorABRT)
	}
	h.fails(readLog(0x30, 0, 0), nil, ata.ErrorABRT)

	write := readLog(0x9f, 14, 2)
	write.Command = 0x3f
	h.good(write, pattern(1024, 5))
	write.Command, write.LBA = 0x57, 0x9e
	h.good(write, pattern(1024, 6))
	h.same("log 9Fh", h.log(0x9f, 14, 2), pattern(1024, 5))
	h.same("log 9Eh", h.log(0x9e, 0, 2), pattern(1024, 6))
	write.LBA = 0x30
	h.fails(write, make([]byte, 1024), ata.ErrorABRT)
}

// TestStatistics checks numbers of the Device Statistics log.
func TestStatistics(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	h.good(cmd48(0x35, 0, 8), make([]byte, 8*512))
	h.good(cmd48(0x25, 0, 3), nil)
	h.good(cmd48(0x25, 0, 2), nil)
	h.drive.Spoil(100, 3)
	h.fails(cmd48(0x25, 100, 3), nil, ata.ErrorUNC)
	h.drive.Reset(ata.HardReset)
	h.drive.PowerCycle(nil)
	pages := h.log(4, 0, 8)
	if got := pages[8:14]; !bytes.Equal(got, []byte{5, 0, 1, 4, 6, 7}) {
		t.Errorf("pages %x", got)
	}
	for _, c := range []struct {
		name       string
		page, at   int
		want, flag uint64
	}{
		{"power-on resets", 1, 8, 2, 0xc0}, {"power-on hours", 1, 16, 0, 0xc0}, {"sectors written", 1, 24, 8, 0xc0}, {"writes", 1, 32, 1, 0xc0},
		{"sectors read", 1, 40, 5, 0xc0}, {"reads", 1, 48, 2, 0xc0}, {"date and time", 1, 56, 0, 0}, {"pending errors", 1, 64, 3, 0xc0},
		{"uncorrectable errors", 4, 8, 1, 0xc0}, {"hardware resets", 6, 8, 1, 0xc0}, {"percentage used", 7, 8, 0, 0xe0},
	} {
		v := binary.LittleEndian.Uint64(pages[512*c.page+c.at:])
		if v&(1<<56-1) != c.want || v>>56 != c.flag {
			t.Errorf("%s: %#x", c.name, v)
		}
	}
	defects := h.log(0x0c, 0, 1)
	if binary.LittleEndian.Uint32(defects) != 3 {
		t.Errorf("defects %x", defects[:16])
	}
	for i := range 3 {
		if lba := binary.LittleEndian.Uint64(defects[16*(i+1)+8:]); lba != uint64(100+i) {
			t.Errorf("defect %d at %d", i, lba)
		}
	}
	if phy := h.log(0x11, 0, 1); !bytes.Equal(phy[4:14], []byte{1, 0x10, 0, 0, 0x0a, 0x10, 1, 0, 0, 0}) {
		t.Errorf("phy events %x", phy[:16])
	}
	errors := h.log(3, 0, 2)
	if errors[0] != 1 || errors[2] != 1 || errors[500] != 1 {
		t.Errorf("error log %x", errors[:16])
	}
	last := errors[4+4*18:][:18]
	if last[12] != 0x25 || last[3] != 3 || last[5] != 100 {
		t.Errorf("the last command is %x", last)
	}
	for _, address := range []byte{1, 2} {
		summary := h.good(smart(0xd5, address, 1), nil)
		command, e := summary[2+48:][:12], summary[2+60:][:30]
		if summary[1] != 1 || summary[452] != 1 || command[2] != 3 || command[3] != 100 || command[7] != 0x25 || e[1] != 0x40 || e[3] != 100 || e[7] != 0x51 {
			t.Errorf("log %d: command %x, error %x", address, command, e)
		}
	}
	if e := errors[4+90:][:34]; e[1] != 0x40 || e[4] != 100 || e[11] != 0x51 {
		t.Errorf("the error is %x", e)
	}
}

func smart(sub byte, lba byte, count uint16) ata.Taskfile {
	return ata.Taskfile{Command: 0xb0, Feature: uint16(sub), Count: count, LBA: 0xc24f00 | uint64(lba)}
}

// TestSMART is the SMART feature set, with self-tests that take their time.
func TestSMART(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, 1<<20, ata.Options{SelfTestTime: time.Hour})
		defer h.drive.Close()
		if r := h.ok(smart(0xda, 0, 0), nil); r.Answer.LBA != 0xc24f00 {
			t.Errorf("status %x", r.Answer.LBA)
		}
		h.fails(ata.Taskfile{Command: 0xb0, Feature: 0xda}, nil, ata.ErrorABRT)
		data := h.good(smart(0xd0, 0, 0), nil)
		thresholds := h.good(smart(0xd1, 0, 0), nil)
		for _, b := range [][]byte{data, thresholds} {
			sum := byte(0)
			for _, x := range b {
				sum += x
			}
			if sum != 0 {
				t.Error("checksum")
			}
		}
		if data[2] != 5 || thresholds[2] != 5 || thresholds[3] == 0 || data[363] != 0 {
			t.Errorf("%x, %x", data[:14], thresholds[:14])
		}

		h.drive.PredictFailure(true)
		if r := h.ok(smart(0xda, 0, 0), nil); r.Answer.LBA != 0x2cf400 {
			t.Errorf("status %x", r.Answer.LBA)
		}
		if b := h.good(smart(0xd0, 0, 0), nil); b[5] != thresholds[3] {
			t.Errorf("attribute %d at %d", b[2], b[5])
		}
		h.drive.PredictFailure(false)

		status := func() byte { return h.good(smart(0xd0, 0, 0), nil)[363] }
		h.good(smart(0xd4, 2, 0), nil) // extended
		time.Sleep(30 * time.Minute)
		if s := status(); s != 0xf5 {
			t.Errorf("half through: %#x", s)
		}
		time.Sleep(31 * time.Minute)
		if s := status(); s != 0 {
			t.Errorf("at the end: %#x", s)
		}
		h.good(smart(0xd4, 1, 0), nil) // short
		h.good(smart(0xd4, 0x7f, 0), nil)
		if s := status(); s != 0x10 {
			t.Errorf("aborted: %#x", s)
		}
		h.drive.Spoil(7, 1)
		began := time.Now()
		if r := h.fails(smart(0xd4, 0x81, 0), nil, ata.ErrorUNC); r.Answer.LBA != 7 {
			t.Errorf("captive: %+v", r.Answer)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a captive test that fails took %v", took)
		}
		log, ext := h.good(smart(0xd5, 6, 1), nil), h.log(7, 0, 1)
		if log[508] != 3 || ext[2] != 3 {
			t.Errorf("%d and %d tests", log[508], ext[2])
		}
		for i, want := range [][]byte{{2, 0}, {1, 0x10}, {0x81, 0x70}} {
			if got := log[2+24*i:][:2]; !bytes.Equal(got, want) {
				t.Errorf("test %d: %x", i, got)
			}
			if got := ext[4+26*i:][:2]; !bytes.Equal(got, want) {
				t.Errorf("test %d: %x", i, got)
			}
		}
		h.good(smart(0xd6, 0x90, 2), pattern(1024, 1))
		h.same("SMART READ LOG", h.good(smart(0xd5, 0x90, 2), nil), pattern(1024, 1))
		h.fails(smart(0xd5, 3, 1), nil, ata.ErrorABRT)
		h.good(smart(0xd9, 0, 0), nil)
		h.fails(smart(0xda, 0, 0), nil, ata.ErrorABRT)
		h.fails(smart(0xd9, 0, 0), nil, ata.ErrorABRT)
		h.drive.PowerCycle(nil)
		if w := h.identify(); w[82]&1 != 1 || w[85]&1 != 0 {
			t.Error("SMART is on after a power cycle")
		}
		h.good(smart(0xd8, 0, 0), nil)
		h.good(smart(0xda, 0, 0), nil)
	})
}

// memory is a lun.Memory.
type memory struct {
	b      []byte
	broken error
}

func (m *memory) Load() ([]byte, error) { return m.b, nil }

func (m *memory) Save(b []byte) error {
	if m.broken == nil {
		m.b = bytes.Clone(b)
	}
	return m.broken
}

// TestMemory starts a drive again, after it was closed and as it was before.
func TestMemory(t *testing.T) {
	m := &memory{}
	o := ata.Options{Memory: m, Trim: true}
	h := newHost(t, 1<<20, o)
	h.good(ata.Taskfile{Command: 0x78, Feature: 1, LBA: 1999}, nil)
	h.good(cmd28(0xca, 0, 4), make([]byte, 2048))
	write := readLog(0x91, 3, 1)
	write.Command = 0x3f
	h.good(write, pattern(512, 7))
	h.good(smart(0xd4, 0x81, 0), nil)
	h.good(ata.Taskfile{Command: 0xf1}, password(0, "me"))
	h.good(ata.Taskfile{Command: 0xf1}, password(1, "boss"))
	h.good(smart(0xd9, 0, 0), nil)
	killed := bytes.Clone(m.b)
	h.drive.Close()
	for _, b := range [][]byte{killed, m.b} {
		m.b = b
		h := newHost(t, 1<<20, o)
		if w := h.identify(); w[128]&7 != 7 || w[100] != 2000 || w[85]&1 != 0 {
			t.Errorf("words 128, 100 and 85: %#x, %d, %#x", w[128], w[100], w[85])
		}
		h.same("host's log", h.log(0x91, 3, 1), pattern(512, 7))
		h.good(ata.Taskfile{Command: 0xf2}, password(1, "boss"))
		h.good(smart(0xd8, 0, 0), nil)
		if log := h.good(smart(0xd5, 6, 1), nil); log[508] != 1 || log[2] != 0x81 {
			t.Errorf("self-tests %x", log[:26])
		}
		general := h.log(4, 1, 1)
		if general[8] < 2 || general[24] != 4 {
			t.Errorf("%d power-on resets, %d sectors written", general[8], general[24])
		}
		m.broken = errors.New("no room")
		if r := h.fails(ata.Taskfile{Command: 0xf6}, password(0, "me"), 0); r.Answer.Status&ata.StatusDF == 0 {
			t.Errorf("status %#x", r.Answer.Status)
		}
		m.broken = nil
		h.drive.Close()
	}
	// Another medium has another size, and a sanitize that hadn't ended begins again.
	m.b = []byte(`{"format":1,"identifier":1,"blocks":2048,"accessible":2000,"sanitize":{"pattern":3}}`)
	h = newHost(t, 2<<20, o)
	for h.ok(ata.Taskfile{Command: 0xb4}, nil).Answer.Count != 0x8000 {
		runtime.Gosched()
	}
	if b := h.good(cmd28(0xc8, 4095, 1), nil); b[0] != 3 || b[1] != 0 {
		t.Errorf("after the sanitize: %x", b[:4])
	}
	for _, bad := range []string{"{", `{"format":2}`, `{"format":1,"user":"AA=="}`} {
		m.b = []byte(bad)
		if _, err := ata.New(mustMem(t, 1<<20), o); err == nil || !strings.Contains(err.Error(), "saved state") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func password(control uint16, p string) []byte {
	b := make([]byte, 512)
	binary.LittleEndian.PutUint16(b, control)
	copy(b[2:], p)
	return b
}

// TestSecurity goes through the states of the Security feature set.
func TestSecurity(t *testing.T) {
	const master, maximum = 1, 0x100
	set, unlock, prepare, erase, freeze, disable := ata.Taskfile{Command: 0xf1}, ata.Taskfile{Command: 0xf2}, ata.Taskfile{Command: 0xf3}, ata.Taskfile{Command: 0xf4}, ata.Taskfile{Command: 0xf5}, ata.Taskfile{Command: 0xf6}
	h := newHost(t, 1<<20, ata.Options{})
	word := func(want uint16) {
		t.Helper()
		if w := h.identify(); w[128] != want || w[85]>>1&1 != want>>1&1 {
			t.Errorf("word 128 is %#x, want %#x; word 85 is %#x", w[128], want, w[85])
		}
	}
	word(0x21)
	h.good(cmd28(0xca, 9, 1), pattern(512, 3))
	h.good(set, password(master, "boss"))
	h.good(set, password(0, "me"))
	word(0x23)
	h.good(cmd28(0xc8, 9, 1), nil) // unlocked until power goes
	h.drive.PowerCycle(nil)
	word(0x27)
	for _, f := range []ata.Taskfile{cmd28(0xc8, 9, 1), cmd28(0xca, 9, 1), queued(0x60, 0, 9, 1), freeze} {
		h.fails(f, make([]byte, 512), ata.ErrorABRT)
		h.drive.Reset(ata.SoftReset)
	}
	h.fails(unlock, password(0, "you"), ata.ErrorABRT)
	h.good(unlock, password(master, "boss"))
	word(0x23)
	h.same("unlocked", h.good(cmd28(0xc8, 9, 1), nil), pattern(512, 3))
	h.good(freeze, nil)
	word(0x2b)
	h.fails(set, password(0, "x"), ata.ErrorABRT)
	h.fails(disable, password(0, "me"), ata.ErrorABRT)
	h.drive.Reset(ata.HardReset) // preserves
	word(0x2b)
	h.drive.PowerCycle(nil)
	for range 5 {
		h.fails(unlock, password(0, "you"), ata.ErrorABRT)
	}
	word(0x37)
	h.fails(unlock, password(0, "me"), ata.ErrorABRT)
	h.drive.PowerCycle(nil)
	h.good(unlock, password(0, "me"))
	h.good(disable, password(0, "me"))
	word(0x21)
	h.good(set, password(maximum, "me"))
	word(0x123)
	h.drive.PowerCycle(nil)
	h.fails(unlock, password(master, "boss"), ata.ErrorABRT)
	h.fails(erase, password(master, "boss"), ata.ErrorABRT)
	h.good(prepare, nil)
	h.identify()
	h.fails(erase, password(master, "boss"), ata.ErrorABRT)
	h.good(prepare, nil)
	h.good(erase, password(master, "boss"))
	word(0x21)
	h.same("erased", h.good(cmd28(0xc8, 9, 1), nil), make([]byte, 512))
}

// TestSanitize overwrites and erases, and what may be done meanwhile.
func TestSanitize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, 1<<20, ata.Options{Trim: true, EraseTime: 100 * time.Second})
		defer h.drive.Close()
		status := ata.Taskfile{Command: 0xb4}
		h.good(cmd28(0xca, 9, 1), pattern(512, 3))
		h.fails(ata.Taskfile{Command: 0xb4, Feature: 0x14, LBA: 0x4f5600000000}, nil, ata.ErrorABRT)
		h.fails(ata.Taskfile{Command: 0xb4, Feature: 0x11, LBA: 0x43727970}, nil, ata.ErrorABRT)
		h.good(ata.Taskfile{Command: 0xb4, Feature: 0x14, Count: 1, LBA: 0x4f57deadbeef}, nil)
		time.Sleep(50 * time.Second)
		r := h.ok(status, nil)
		if r.Answer.Count != 0x4000 || r.Answer.LBA < 0x7000 || r.Answer.LBA > 0x9000 {
			t.Errorf("half through: %+v", r.Answer)
		}
		h.fails(cmd28(0xc8, 9, 1), nil, ata.ErrorABRT)
		h.identify()
		h.log(0x10, 0, 1)
		time.Sleep(51 * time.Second)
		if r := h.ok(status, nil); r.Answer.Count != 0x8000 || r.Answer.LBA != 0xffff {
			t.Errorf("at the end: %+v", r.Answer)
		}
		h.same("overwritten", h.good(cmd28(0xc8, 9, 1), nil), bytes.Repeat([]byte{0xef, 0xbe, 0xad, 0xde}, 128))
		h.good(ata.Taskfile{Command: 0xb4, Feature: 0x12, LBA: 0x426b4572}, nil)
		time.Sleep(101 * time.Second)
		h.same("erased", h.good(cmd28(0xc8, 9, 1), nil), make([]byte, 512))
		h.good(ata.Taskfile{Command: 0xb4, Feature: 0x20, LBA: 0x46724c6b}, nil)
		if r := h.ok(status, nil); r.Answer.Count != 0xa000 {
			t.Errorf("frozen: %+v", r.Answer)
		}
		h.fails(ata.Taskfile{Command: 0xb4, Feature: 0x12, LBA: 0x426b4572}, nil, ata.ErrorABRT)
		h.drive.PowerCycle(nil)
		h.good(ata.Taskfile{Command: 0xb4, Feature: 0x40, LBA: 0x416e7469}, nil)
		h.fails(ata.Taskfile{Command: 0xb4, Feature: 0x20, LBA: 0x46724c6b}, nil, ata.ErrorABRT)
	})
}

// TestSanitizeFails has the store fail.
func TestSanitizeFails(t *testing.T) {
	s := &failing{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, ata.Options{})
	overwrite := ata.Taskfile{Command: 0xb4, Feature: 0x14, Count: 1, LBA: 0x4f5700000001}
	status, clears := ata.Taskfile{Command: 0xb4}, ata.Taskfile{Command: 0xb4, Count: 1}
	fail := func(f ata.Taskfile) {
		t.Helper()
		s.err = syscall.EIO
		h.good(f, nil)
		for h.do(status, nil).Answer.Count&0x4000 != 0 {
			runtime.Gosched()
		}
		s.err = nil
		if r := h.fails(status, nil, ata.ErrorABRT); r.Answer.LBA != 1 {
			t.Errorf("reason %d", r.Answer.LBA)
		}
		h.fails(cmd28(0xc8, 0, 1), nil, ata.ErrorABRT)
	}
	overwrite.Count |= 0x10 // FAILURE MODE
	fail(overwrite)
	h.good(clears, nil)
	h.good(cmd28(0xc8, 0, 1), nil)
	overwrite.Count = 1
	fail(overwrite)
	h.fails(clears, nil, ata.ErrorABRT)
	h.drive.PowerCycle(nil)
	h.fails(cmd28(0xc8, 0, 1), nil, ata.ErrorABRT)
}

// TestPower goes through the power modes.
func TestPower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, 1<<20, ata.Options{RotationRate: 7200, SpinUp: 5 * time.Second})
		defer h.drive.Close()
		mode := func(want uint16) {
			t.Helper()
			if r := h.ok(ata.Taskfile{Command: 0xe5}, nil); r.Answer.Count != want {
				t.Errorf("mode %#x, want %#x", r.Answer.Count, want)
			}
		}
		takes := func(want time.Duration) {
			t.Helper()
			began := time.Now()
			h.good(cmd28(0xc8, 0, 1), nil)
			if took := time.Since(began); took != want {
				t.Errorf("it took %v, want %v", took, want)
			}
		}
		takes(5 * time.Second)
		takes(0)
		h.good(ata.Taskfile{Command: 0xe0}, nil)
		mode(0)
		takes(5 * time.Second)
		mode(0xff)
		h.good(ata.Taskfile{Command: 0xe3, Count: 2}, nil) // IDLE, 10 s
		mode(0x80)
		time.Sleep(9 * time.Second)
		mode(0x80)
		takes(0)
		time.Sleep(9 * time.Second)
		mode(0xff)
		time.Sleep(2 * time.Second)
		mode(0)
		h.good(ata.Taskfile{Command: 0xe1}, nil)
		mode(0x80)
		takes(5 * time.Second)
		if r := h.ok(ata.Taskfile{Command: 0xe1, Feature: 0x44, LBA: 0x554e4c}, nil); r.Answer.LBA&0xff != 0xc4 {
			t.Errorf("unload: %x", r.Answer.LBA)
		}
		h.fails(ata.Taskfile{Command: 0xe1, Feature: 0x44}, nil, ata.ErrorABRT)
		h.fails(ata.Taskfile{Command: 0xe2, Count: 254}, nil, ata.ErrorABRT)
		for count, period := range map[uint16]time.Duration{1: 5 * time.Second, 240: 20 * time.Minute, 241: 30 * time.Minute, 251: 330 * time.Minute, 252: 21 * time.Minute, 253: 8 * time.Hour, 255: 21*time.Minute + 15*time.Second} {
			h.good(ata.Taskfile{Command: 0xe3, Count: count}, nil)
			time.Sleep(period - time.Second)
			mode(0x80)
			time.Sleep(time.Second)
			mode(0)
		}
		h.good(ata.Taskfile{Command: 0xe6}, nil)
		h.fails(ata.Taskfile{Command: 0xec}, nil, ata.ErrorABRT)
		h.drive.Reset(ata.SoftReset)
		mode(0)
	})
}

// TestMaxAddress makes the drive smaller.
func TestMaxAddress(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	configure := func(feature uint16, lba uint64) ata.Taskfile {
		return ata.Taskfile{Command: 0x78, Feature: feature, LBA: lba}
	}
	h.fails(configure(1, 2048), nil, ata.ErrorIDNF)
	h.good(configure(1, 999), nil)
	h.fails(configure(1, 1999), nil, ata.ErrorABRT)
	if w := h.identify(); w[60] != 1000 || w[100] != 1000 {
		t.Errorf("%d and %d sectors", w[60], w[100])
	}
	h.good(cmd48(0x25, 999, 1), nil)
	if r := h.fails(cmd48(0x25, 999, 2), nil, ata.ErrorIDNF); r.Answer.LBA != 1000 {
		t.Errorf("the first that isn't there is %d", r.Answer.LBA)
	}
	if r := h.ok(configure(0, 0), nil); r.Answer.LBA != 2047 {
		t.Errorf("native max address %d", r.Answer.LBA)
	}
	h.drive.PowerCycle(nil)
	h.good(configure(2, 0), nil)
	h.fails(configure(1, 2047), nil, ata.ErrorABRT)
	h.drive.PowerCycle(nil)
	h.good(configure(1, 2047), nil)
	h.good(cmd48(0x25, 2047, 1), nil)
}

// TestFeatures sets features, and what resets make of them.
func TestFeatures(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	feature := func(sub byte, count uint16) ata.Taskfile {
		return ata.Taskfile{Command: 0xef, Feature: uint16(sub), Count: count}
	}
	for _, f := range []ata.Taskfile{feature(0x03, 0x47), feature(0x03, 0x23), feature(0x05, 0), feature(0x10, 5), feature(0x77, 0)} {
		h.fails(f, nil, ata.ErrorABRT)
	}
	h.fails(ata.Taskfile{Command: 0x0b}, nil, ata.ErrorABRT)
	for _, f := range []ata.Taskfile{feature(0x03, 0x42), feature(0x05, 0x80), feature(0x55, 0), feature(0xc3, 1)} {
		h.good(f, nil)
	}
	check := func(when string, w85, w88, w91, w120 uint16) {
		t.Helper()
		w := h.identify()
		if w[85]&0x40 != w85 || w[88] != w88 || w[91] != w91 || w[120]&0x40 != w120 {
			t.Errorf("%s: %#x %#x %#x %#x", when, w[85], w[88], w[91], w[120])
		}
	}
	check("set", 0, 0x047f, 0x80, 0x40)
	h.fails(feature(0x77, 0), nil, ata.ErrorABRT)
	if r := h.ok(ata.Taskfile{Command: 0x0b}, nil); r.Answer.LBA != 0x052400 {
		t.Errorf("sense data %x", r.Answer.LBA)
	}
	h.drive.Reset(ata.SoftReset)
	h.drive.Reset(ata.HardReset)
	check("preserved", 0, 0x047f, 0x80, 0x40)
	h.good(feature(0x90, 6), nil)
	h.drive.Reset(ata.HardReset)
	check("reset", 0x40, 0x407f, 0xfe, 0)
	h.good(feature(0x85, 0), nil)
	h.good(feature(0xcc, 0), nil)
	check("no APM", 0x40, 0x407f, 0, 0)
	h.drive.Reset(ata.SoftReset)
	check("reverted", 0x40, 0x407f, 0xfe, 0)

	h.good(ata.Taskfile{Command: 0xe8}, pattern(512, 8))
	h.same("buffer", h.good(ata.Taskfile{Command: 0xe9}, nil), pattern(512, 8))
	if r := h.ok(ata.Taskfile{Command: 0x90}, nil); r.Answer.Error != 1 || r.Answer.LBA != 1 {
		t.Errorf("diagnostic %+v", r.Answer)
	}
	if b := h.good(ata.Taskfile{Command: 0x5c, Count: 1}, nil); !bytes.Equal(b[:10], []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0}) {
		t.Errorf("security protocols %x", b[:10])
	}
	h.fails(ata.Taskfile{Command: 0x5c, Count: 1, Feature: 1}, nil, ata.ErrorABRT)
	h.fails(ata.Taskfile{Command: 0x00}, nil, ata.ErrorABRT)
}

// TestCommands looks that just the commands that are listed are there.
func TestCommands(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{Trim: true})
	h.good(ata.Taskfile{Command: 0xef, Feature: 0xc3, Count: 1}, nil)
	listed := map[byte]string{}
	for _, c := range ata.Commands() {
		if listed[c.Code] != "" {
			t.Errorf("%#x is %s and %s", c.Code, listed[c.Code], c.Name)
		}
		listed[c.Code] = c.Name
		if p, ok := h.drive.Protocol(&ata.Taskfile{Command: c.Code}); !ok || p != c.Protocol {
			t.Errorf("%s: protocol %d, %v; want %d", c.Name, p, ok, c.Protocol)
		}
	}
	for code := range 256 {
		if listed[byte(code)] != "" {
			continue
		}
		h.fails(ata.Taskfile{Command: byte(code)}, nil, ata.ErrorABRT)
		if r := h.ok(ata.Taskfile{Command: 0x0b}, nil); r.Answer.LBA != 0x052000 {
			t.Errorf("%#x: sense data %06x", code, r.Answer.LBA)
		}
	}
}

// FuzzTasks runs a chain of commands. Each is a Register FIS; data is for all of them.
func FuzzTasks(f *testing.F) {
	for code := range 256 {
		t := ata.Taskfile{Command: byte(code), Count: 1, LBA: 1, Device: 0x40, Feature: 1, Aux: 1}
		s := smart(0xd0+byte(code&15), byte(code), 1)
		l := readLog(byte(code), 0, 1)
		f.Add(uint8(code), l.AppendFIS(s.AppendFIS(t.AppendFIS(nil))), []byte{1, 2, 3})
	}
	kinds := []ata.Options{{Trim: true}, {BlockSize: 4096, QueueDepth: 7}, {QueueDepth: 1, RotationRate: 7200, PhysicalExponent: 3}}
	f.Fuzz(func(t *testing.T, kind uint8, chain, data []byte) {
		d, err := ata.New(mustMem(t, 1<<20), kinds[int(kind)%len(kinds)])
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for n := 0; len(chain) > 0 && n < 32; n++ {
			fis := chain[:min(len(chain), ata.FISLength)]
			chain = chain[len(fis):]
			var task ata.Task
			command, err := task.Parse(fis)
			if err != nil {
				continue
			}
			if again := task.Taskfile.AppendFIS(nil); command && !bytes.Equal(again[2:], fis[2:]) {
				t.Fatalf("%x came back as %x", fis, again)
			}
			if !command {
				d.Reset(ata.Reset(fis[15] & 1))
				continue
			}
			out, in := d.DataLength(&task.Taskfile)
			if out > 65536*4096 || in > 65536*4096 {
				t.Fatalf("%x moves %d, %d", fis, out, in)
			}
			task.DataOut, task.DataIn = pieces(data), pieces(make([]byte, 700))
			ended := false
			task.Done = func(*ata.Task) { ended = true }
			d.Issue(&task)
			if !ended || task.Ending == ata.NoAnswer || task.Answer.Status&0x40 == 0 {
				t.Fatalf("%x: ended %v by %d, %+v", fis, ended, task.Ending, task.Answer)
			}
			if !task.Failed() && task.Moved != max(out, in) {
				t.Fatalf("%x moved %d, DataLength says %d, %d", fis, task.Moved, out, in)
			}
			if len(task.AppendFIS(nil)) == 0 {
				t.Fatalf("%x: no FIS", fis)
			}
		}
	})
}

// FuzzMemory starts a drive with a state that is damaged.
func FuzzMemory(f *testing.F) {
	m := &memory{}
	h := newHost(f, 1<<20, ata.Options{Memory: m})
	h.good(ata.Taskfile{Command: 0xf1}, password(0, "me"))
	h.drive.Close()
	f.Add(m.b)
	f.Add([]byte(`{"format":1,"blocks":2048,"accessible":7,"counts":[1],"sanitize":{"erase":true},"hostLogs":{"128":"AA=="},"on":-5}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ata.New(mustMem(t, 1<<20), ata.Options{Memory: &memory{b: b}})
		if err != nil {
			return
		}
		defer d.Close()
		h := &host{t, d}
		h.identify()
		h.log(4, 0, 8)
		h.log(7, 0, 1)
	})
}
