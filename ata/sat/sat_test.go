package sat_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"lunlab/ata"
	"lunlab/ata/sat"
	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/mem"
)

// TestTransfers reads and writes by every CDB, on drives with and without a queue.
func TestTransfers(t *testing.T) {
	for _, depth := range []int{1, 32} {
		for _, size := range []int{512, 4096} {
			h := newHost(t, 16<<20, ata.Options{QueueDepth: depth, BlockSize: size})
			blocks := 16 << 20 / size
			for i, w := range []string{
				"0a 000010 08 00", "2a 00 00000010 00 0008 00", "2a 08 00000010 00 0008 00", "aa 00 00000010 00000008 00 00", "8a 08 0000000000000010 00000008 00 00",
				"2e 00 00000010 00 0008 00", "ae 02 00000010 00000008 00 00", "8e 02 0000000000000010 00000008 00 00",
			} {
				data := pattern(8*size, byte(i))
				if a := h.do(w, data, 0).good(); a.out != uint64(8*size) {
					t.Errorf("%s took %d bytes", w, a.out)
				}
				for _, r := range []string{"08 000010 08 00", "28 08 00000010 00 0008 00", "a8 00 00000010 00000008 00 00", "88 10 0000000000000010 00000008 00 00"} {
					h.same(w+", "+r, h.do(r, nil, 8*size).good().data, data)
				}
				for _, v := range []string{"2f 00 00000010 00 0008 00", "2f 02 00000010 00 0008 00", "af 02 00000010 00000008 00 00", "8f 02 0000000000000010 00000008 00 00"} {
					h.do(v, data, 0).good()
				}
				data[5000%len(data)] ^= 1
				a := h.do("8f 02 0000000000000010 00000008 00 00", data, 0).fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
				if got := binary.BigEndian.Uint32(a.sense[3:]); int(got) != 5000%len(data) {
					t.Errorf("they differ at %d", got)
				}
			}
			end := fmt.Sprintf("%016x", blocks)
			h.do("88 00"+end+"00000001 00 00", nil, size).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
			h.do("8a 00"+end+"00000001 00 00", make([]byte, size), 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
			h.do("8a 00"+end+"00000000 00 00", nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
			h.do("88 00 0000000000000000 00004001 00 00", nil, size).fails(lun.IllegalRequest, map[bool]uint16{true: lun.ASCLBAOutOfRange, false: lun.ASCInvalidFieldInCDB}[size == 4096])
			// Of data that is short the whole blocks are written, and of short room all is told.
			h.do("2a 00 00000010 00 0008 00", bytes.Repeat([]byte{9}, 2*size+5), 0).good()
			if a := h.do("28 00 00000010 00 0008 00", nil, 3*size).good(); a.in != uint64(8*size) || a.data[2*size-1] != 9 || a.data[2*size] == 9 {
				t.Errorf("%d bytes; %x", a.in, a.data[2*size-1:2*size+1])
			}
			h.do("35 00 00000000 00 0000 00", nil, 0).good()
			h.do("91 02 0000000000000000 00000000 00 00", nil, 0).good()
		}
	}
}

// TestErrors translates the drive's errors.
func TestErrors(t *testing.T) {
	for _, depth := range []int{1, 32} {
		h := newHost(t, 1<<20, ata.Options{QueueDepth: depth})
		h.drive.Spoil(500, 1)
		a := h.do("28 00 000001f0 00 0010 00", nil, 16*512).fails(lun.MediumError, lun.ASCUnrecoveredReadError)
		if a.sense[0] != 0xf0 || binary.BigEndian.Uint32(a.sense[3:]) != 500 {
			t.Errorf("sense data %x", a.sense)
		}
		h.do("2f 00 000001f0 00 0010 00", nil, 0).fails(lun.MediumError, lun.ASCUnrecoveredReadError)
		h.do("28 00 00000000 00 0010 00", nil, 16*512).good()
		h.do("2a 00 000001f4 00 0001 00", make([]byte, 512), 0).good()
		h.do("28 00 000001f0 00 0010 00", nil, 16*512).good()

		// What the drive doesn't say in SCSI's words comes from Status and Error.
		h.do("85 06 00 00c3 0000 000000000000 00 ef 00", nil, 0).good()
		h.drive.Spoil(500, 1)
		h.do("28 00 000001f0 00 0010 00", nil, 16*512).fails(lun.MediumError, lun.ASCUnrecoveredReadError)
		h.do("85 06 00 0077 0000 000000000000 00 ef 00", nil, 0).fails(lun.AbortedCommand, 0)
	}
}

// TestDiscovery checks INQUIRY, vital product data and READ CAPACITY.
func TestDiscovery(t *testing.T) {
	h := newHost(t, 64<<20, ata.Options{Model: "A drive of ours here", Serial: "SN42", Firmware: "ABCD1234", WWN: 0x5001405000000042, Trim: true, PhysicalExponent: 3, LowestAligned: 1, FormFactor: 3})
	a := h.do("12 00 00 0060 00", nil, 96).good()
	if got := string(a.data[8:36]); got != "ATA     A drive of ours 1234" || a.data[2] != 6 || a.data[3] != 2 || a.data[4] != 91 {
		t.Errorf("INQUIRY %x", a.data)
	}
	h.do("12 01 00 00ff 00", nil, 255).is("00 00 0007 00 80 83 89 b0 b1 b2")
	if a := h.do("12 01 80 00ff 00", nil, 255).good(); string(a.data[4:]) != "SN42                " {
		t.Errorf("serial number %q", a.data[4:])
	}
	a = h.do("12 01 83 00ff 00", nil, 255).good()
	if !bytes.HasPrefix(a.data, unhex(t, "0083 0054 01030008 5001405000000042 02010044")) || len(a.data) != 0x58 || string(a.data[20:33]) != "ATA     A dri" {
		t.Errorf("designators %x", a.data)
	}
	a = h.do("12 01 89 0400 00", nil, 1024).good()
	if len(a.data) != 572 || a.data[36] != 0x34 || a.data[56] != 0xec || a.data[60+510] != 0xa5 || string(a.data[8:16]) != "LUNLAB  " {
		t.Errorf("ATA information %x", a.data[:60])
	}
	h.do("12 01 b0 0040 00", nil, 64).is("00b0 003c 00 00 0008 00004000 00000800 00000000 00100000 00000100 00000008 80000001 000000000000ffff" + "0000000000000000000000000000000000000000")
	h.do("12 01 b1 0008 00", nil, 8).is("00b1 003c 0001 00 43")
	h.do("12 01 b2 0008 00", nil, 8).is("00b2 0004 00 c4 02 00")
	h.do("12 01 b9 0008 00", nil, 8).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	h.do("25 00 00000000 0000 00 00", nil, 8).is("0001ffff 00000200")
	h.do("9e 10 0000000000000000 00000020 00 00", nil, 32).is("000000000001ffff 00000200 00 03 c001 00000000000000000000000000000000")
	h.do("a0 00 00 000000 00000010 00 00", nil, 16).is("00000008 00000000 0000000000000000")

	h = newHost(t, 64<<20, ata.Options{BlockSize: 4096, RotationRate: 7200})
	h.do("12 01 b1 0008 00", nil, 8).is("00b1 003c 1c20 00 02")
	h.do("12 01 b2 0008 00", nil, 8).is("00b2 0004 00 00 00 00")
	h.do("42 00 00000000 00 0018 00", make([]byte, 24), 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	h.do("9e 10 0000000000000000 00000010 00 00", nil, 16).is("0000000000003fff 00001000 00 00 0000")
}

// TestUnmap is UNMAP and WRITE SAME.
func TestUnmap(t *testing.T) {
	for _, depth := range []int{1, 32} {
		h := newHost(t, 128<<20, ata.Options{Trim: true, QueueDepth: depth})
		fill := func() {
			h.do("2a 00 00000000 00 0040 00", bytes.Repeat([]byte{7}, 64*512), 0).good()
		}
		check := func(what string, zeros ...int) {
			t.Helper()
			b := h.do("28 00 00000000 00 0040 00", nil, 64*512).good().data
			for i := range 64 {
				if zero := b[512*i] == 0; zero != slices.Contains(zeros, i) {
					t.Errorf("%s: block %d is zero: %v", what, i, zero)
				}
			}
		}
		fill()
		list := unhex(t, "0026 0020 00000000 0000000000000003 00000002 00000000 0000000000000020 00000001 00000000")
		h.do("42 00 00000000 00 0028 00", list, 0).good()
		check("UNMAP", 3, 4, 32)
		h.do("42 00 00000000 00 0018 00", unhex(t, "0016 0010 00000000 0000000000000000 00040000 00000000"), 0).good() // more than a range of TRIM
		h.do("42 00 00000000 00 0018 00", unhex(t, "0016 0010 00000000 0000000000000001 00040000 00000000"), 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
		fill()
		h.do("93 08 0000000000000005 00000002 00 00", make([]byte, 512), 0).good()
		h.do("93 09 000000000000000a 00000001 00 00", nil, 0).good()
		h.do("93 01 000000000000000b 00000001 00 00", nil, 0).good()
		h.do("41 00 0000000c 00 0002 00", make([]byte, 512), 0).good()
		check("WRITE SAME", 5, 6, 10, 11, 12, 13)
		h.do("41 00 00000000 00 0040 00", bytes.Repeat([]byte{8}, 512), 0).good()
		check("WRITE SAME")
		h.do("41 00 00000000 00 0040 00", make([]byte, 513), 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
		h.do("93 00 0000000000000000 00010000 00 00", make([]byte, 512), 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	}
}

// TestModes reads and changes mode pages.
func TestModes(t *testing.T) {
	h := newHost(t, 64<<20, ata.Options{})
	b := h.other("b")
	const header = "00 10 08 00020000 00000200"
	h.do("1a 08 08 00 ff 00", nil, 255).is("17 00 10 00 0812 0400 0000000000000000 0000000000000000")
	h.do("1a 00 0a 00 ff 00", nil, 255).is("17" + header + "0a0a 00100000 0000ffff 0000")
	h.do("1a 08 48 00 ff 00", nil, 255).is("17 00 10 00 0812 0400 0000000000000000 2000000000000000")
	h.do("5a 10 0a 00 000000 00ff 00", nil, 255).is("0022 00 10 01 00 0010 0000000000020000 00000000 00000200 0a0a 00100000 0000ffff 0000")
	h.do("1a 08 1c 00 ff 00", nil, 255).is("0f 00 10 00 1c0a 0006 0000000000000000")
	h.do("1a 08 3f 00 ff 00", nil, 255).good()
	h.do("1a 08 02 00 ff 00", nil, 255).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	h.do("1a 08 c8 00 ff 00", nil, 255).fails(lun.IllegalRequest, lun.ASCSavingParametersNotSupported)

	h.do("15 10 0000 18 00", unhex(t, "00000000 0812 0000 0000000000000000 2000000000000000"), 0).good()
	h.do("1a 08 08 00 ff 00", nil, 255).is("17 00 10 00 0812 0000 0000000000000000 2000000000000000")
	h.do("1a 08 88 00 ff 00", nil, 255).is("17 00 10 00 0812 0400 0000000000000000 0000000000000000")
	b.do("00 00 00 00 00 00", nil, 0).fails(lun.UnitAttention, lun.ASCModeParametersChanged)
	h.do("15 10 0000 18 00", unhex(t, "00000000 0812 0100 0000000000000000 2000000000000000"), 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInParameterList)
	h.do("15 10 0000 14 00", unhex(t, "00000008 00000000 00000400 0a0a 04100000 ffff"), 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInParameterList)
	h.do("15 10 0000 18 00", unhex(t, "00000008 00000000 00000200 0a0a 04100000 0000ffff 0000"), 0).good()
	if a := h.do("28 00 ffffffff 00 0001 00", nil, 512).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange); a.sense[0] != 0x72 {
		t.Errorf("sense data %x", a.sense)
	}
}

// TestStates is START STOP UNIT, REQUEST SENSE, resets, SANITIZE and self-tests.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, 1<<20, ata.Options{EraseTime: 10 * time.Second, Trim: true})
		defer h.unit.Close()
		sense := func(want string) {
			t.Helper()
			a := h.do("03 00 00 00 12 00", nil, 18).good()
			if got := fmt.Sprintf("%x/%02x%02x", a.data[2], a.data[12], a.data[13]); got != want {
				t.Errorf("REQUEST SENSE says %s, want %s", got, want)
			}
		}
		sense("0/0000")
		h.do("1b 00 00 00 30 00", nil, 0).good() // STANDBY
		sense("0/5e00")
		h.do("00 00 00 00 00 00", nil, 0).good()
		h.do("1b 00 00 00 00 00", nil, 0).good() // stop
		sense("2/0402")
		h.do("00 00 00 00 00 00", nil, 0).fails(lun.NotReady, lun.ASCNotReadyInitializingRequired)
		h.do("28 00 00000000 00 0001 00", nil, 512).fails(lun.NotReady, lun.ASCNotReadyInitializingRequired)
		h.do("1b 00 00 00 02 00", nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
		h.do("1b 00 00 00 01 00", nil, 0).good()
		h.do("28 00 00000000 00 0001 00", nil, 512).good()

		h.do("48 82 0000000000 0000 00", nil, 0).good() // BLOCK ERASE, IMMED
		h.do("00 00 00 00 00 00", nil, 0).fails(lun.NotReady, lun.ASCNotReadySanitizeInProgress)
		sense("2/041b")
		h.do("28 00 00000000 00 0001 00", nil, 512).fails(lun.NotReady, lun.ASCNotReadySanitizeInProgress)
		time.Sleep(11 * time.Second)
		h.do("00 00 00 00 00 00", nil, 0).good()
		began := time.Now()
		h.do("48 01 0000000000 0008 00", unhex(t, "01 00 0004 deadbeef"), 0).good()
		if took := time.Since(began); took < 10*time.Second {
			t.Errorf("SANITIZE took %v", took)
		}
		h.same("overwritten", h.do("28 00 00000000 00 0001 00", nil, 512).good().data, bytes.Repeat([]byte{0xde, 0xad, 0xbe, 0xef}, 128))

		h.do("1d 20 00 0000 00", nil, 0).good() // a short test
		synctest.Wait()
		h.do("1d 04 00 0000 00", nil, 0).good() // the default one
		h.drive.Spoil(3, 1)
		h.do("1d c0 00 0000 00", nil, 0).fails(lun.HardwareError, lun.ASCSelfTestFailed)
		a := h.do("4d 00 50 00 00 0000 ffff 00", nil, 1024).good()
		for i, want := range []string{"c7 00 0000 0000000000000003 03 1100 00", "a0 00 0000 ffffffffffffffff 00 0000 00", "20 00 0000 ffffffffffffffff 00 0000 00", "00 00 0000 0000000000000000 00 0000 00"} {
			if got := a.data[8+20*i:][:16]; !bytes.Equal(got, unhex(t, want)) {
				t.Errorf("self-test %d: %x", i, got)
			}
		}
		h.do("4d 00 40 00 00 0000 00ff 00", nil, 255).is("00 00 0004 00 10 11 2f")
		h.do("4d 00 51 00 00 0001 00ff 00", nil, 255).is("11 00 0008 0001 03 04 00 00 00 00")
		h.do("4d 00 51 00 00 0002 00ff 00", nil, 255).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
		h.do("4d 00 6f 00 00 0000 00ff 00", nil, 255).is("2f 00 0008 0000 03 04 00 00 ff 00")

		h.drive.PredictFailure(true)
		h.do("4d 00 6f 00 00 0000 00ff 00", nil, 255).is("2f 00 0008 0000 03 04 5d 00 ff 00")
		sense("0/5d00")

		other := h.other("b")
		h.unit.Notify(h.n, lun.LogicalUnitReset)
		h.do("00 00 00 00 00 00", nil, 0).fails(lun.UnitAttention, lun.ASCBusDeviceReset)
		h.unit.Notify(nil, lun.LUNsChanged)
		other.do("12 00 00 0024 00", nil, 36).good()
		other.do("00 00 00 00 00 00", nil, 0).fails(lun.UnitAttention, lun.ASCBusDeviceReset)
		told := 0
		other.n.LUNsReported = func() { told++ }
		other.do("00 00 00 00 00 00", nil, 0).fails(lun.UnitAttention, lun.ASCReportedLUNsDataHasChanged)
		if told != 1 {
			t.Errorf("the target heard %d times that the inventory was reported", told)
		}
		h.unit.Notify(nil, lun.LUNsChanged)
		h.unit.Notify(other.n, lun.LUNsReported)
		h.unit.Notify(new(lun.Nexus), lun.LUNsReported)
		other.do("00 00 00 00 00 00", nil, 0).good()
		if err := h.unit.PowerCycle(nil); err != nil {
			t.Error(err)
		}
		if n, s := h.unit.Attention(h.n); n != 1 || s.Code != lun.ASCPowerOnOrReset {
			t.Errorf("%d unit attentions, the first %+v", n, s)
		}
	})
}

// TestPassThrough sends ATA commands in every protocol.
func TestPassThrough(t *testing.T) {
	h := newHost(t, 64<<20, ata.Options{Trim: true})
	id := h.do("85 08 0e 0000 0001 000000000000 00 ec 00", nil, 512).good().data
	if len(id) != 512 || id[510] != 0xa5 {
		t.Errorf("IDENTIFY DEVICE %x", id)
	}
	h.same("12 bytes", h.do("a1 08 0e 00 01 000000 00 ec 00 00", nil, 512).good().data, id)
	h.same("32 bytes", h.do("7f 00 00000000 00 18 1ff0 08 0e 0000 000000000000 0000 0001 00 ec 00 00 00000000", nil, 512).good().data, id)
	h.same("by the room", h.do("85 08 0f 0000 0001 000000000000 00 ec 00", nil, 512).good().data, id)
	// CK_COND
	a := h.do("85 08 2e 0000 0001 000000000000 00 ec 00", nil, 512).fails(lun.RecoveredError, 0x001d)
	if !bytes.Equal(a.sense[:8], unhex(t, "72 01 001d 000000 0e")) || !bytes.Equal(a.sense[8:], unhex(t, "09 0c 00 00 00 00 00 00 00 00 00 00 00 50")) || a.in != 512 {
		t.Errorf("%d bytes, sense data %x", a.in, a.sense)
	}
	a = h.do("85 06 20 0000 0000 000000000000 00 e5 00", nil, 0).fails(lun.RecoveredError, 0x001d)
	if a.sense[8+5] != 0xff {
		t.Errorf("CHECK POWER MODE: sense data %x", a.sense)
	}
	same := h.do("85 1e 00 0000 0000 000000000000 00 00 00", nil, 0).fails(lun.RecoveredError, 0x001d)
	if !bytes.Equal(same.sense, a.sense) {
		t.Errorf("RETURN RESPONSE INFORMATION: %x, not %x", same.sense, a.sense)
	}
	data := pattern(2048, 4)
	for _, c := range []struct{ name, write, read string }{
		{"PIO", "85 0a 16 0000 0004 000000100000 40 30 00", "85 08 1e 0000 0004 000000100000 40 20 00"},
		{"DMA", "85 0d 16 0000 0004 000000100000 40 35 00", "85 0d 1e 0000 0004 000000100000 40 25 00"},
		{"UDMA", "85 17 16 0000 0004 000000100000 40 35 00", "85 15 1e 0000 0004 000000100000 40 25 00"},
		{"FPDMA", "85 19 15 0004 0000 000000100000 40 61 00", "85 19 1d 0004 0000 000000100000 40 60 00"},
		{"bytes", "7f 00 00000000 00 18 1ff0 0d 16 0000 000000001000 0000 0004 40 35 00 00 00000000", "85 0d 1f 0000 0004 000000100000 40 25 00"},
	} {
		data[0]++
		h.do(c.write, data, 0).good()
		h.same(c.name, h.do(c.read, nil, 2048).good().data, data)
	}
	trim := make([]byte, 512)
	binary.LittleEndian.PutUint64(trim, 0x1000|1<<48)
	h.do("7f 00 00000000 00 18 1ff0 19 05 0000 000000000000 0001 0000 40 64 00 00 00000001", trim, 0).good()
	h.do("85 0d 06 0001 0001 000000000000 40 06 00", trim, 0).good()

	// Errors come with the registers, and what was said wrongly is refused.
	h.drive.Spoil(0x123456, 0)
	h.drive.Spoil(0x1234, 1)
	a = h.do("85 0d 0e 0000 0001 003400120000 40 25 00", nil, 512).fails(lun.MediumError, lun.ASCUnrecoveredReadError)
	want := unhex(t, "72 03 1100 000000 1a 00 0a 80 00 0000000000001234 09 0c 01 40 0000 0034 0012 0000 40 53")
	if !bytes.Equal(a.sense, want) {
		t.Errorf("sense data\n got %x\nwant %x", a.sense, want)
	}
	h.do("85 19 1d 0001 0000 003400120000 40 60 00", nil, 512).fails(lun.MediumError, lun.ASCUnrecoveredReadError)
	h.do("85 06 00 0000 0000 000000000000 00 f7 00", nil, 0).fails(lun.IllegalRequest, lun.ASCInvalidCommandOperationCode)
	for _, bad := range []string{
		"85 06 00 0000 0001 000000000000 00 ec 00", // no data
		"85 08 06 0000 0001 000000000000 40 30 00", // PIO in for PIO out
		"85 0c 06 0000 0001 000000000000 40 c8 00", // the wrong direction
		"85 0c 0e 0000 0001 000000000000 40 60 00", // DMA for FPDMA
		"85 04 00 0000 0000 000000000000 00 e5 00", // a protocol that there isn't
		"85 08 0a 0000 0001 000000000000 00 ec 00", // one byte
		"85 08 0c 0000 0001 000000000000 00 ec 00", // none
	} {
		h.do(bad, make([]byte, 512), 512).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
	}
	// The unit minds what changes behind its back.
	b := h.other("b")
	h.do("85 07 00 0001 0000 00ff00ff0000 00 78 00", nil, 0).good()
	b.do("00 00 00 00 00 00", nil, 0).fails(lun.UnitAttention, lun.ASCCapacityDataHasChanged)
	b.do("25 00 00000000 0000 00 00", nil, 8).is("0000ffff 00000200")
	b.do("28 00 00010000 00 0001 00", nil, 512).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
	h.do("85 02 00 0000 0000 000000000000 00 00 00", nil, 0).good() // SRST
	h.do("85 10 00 0000 0000 000000000000 00 90 00", nil, 0).good() // EXECUTE DEVICE DIAGNOSTIC
}

// TestOpcodes looks at REPORT SUPPORTED OPERATION CODES.
func TestOpcodes(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	all := h.do("a3 0c 80 00 0000 0000ffff 00 00", nil, 65535).good().data[4:]
	for ; len(all) > 0; all = all[20:] {
		one := h.run([]byte{0xa3, 0x0c, 0x03, all[0], all[2], all[3], 0, 0, 1, 0, 0, 0}, nil, 256).good().data
		if one[1] != 3 || int(one[3]) != len(one)-4 || one[4] != all[0] || len(one)-4 != int(all[7]) {
			t.Errorf("%x: %x", all[:8], one)
		}
	}
	h.do("a3 0c 01 42 0000 000000ff 00 00", nil, 255).is("00 01 0000")
	h.do("a2 00 0000 00 00 00000010 00 00", nil, 16).is("000000000000 0001 00 00000000000000")
	h.do("a2 00 0000 80 00 00000001 00 00", nil, 512).good()
	h.do("a2 01 0000 00 00 00000010 00 00", nil, 16).fails(lun.IllegalRequest, lun.ASCInvalidFieldInCDB)
}

// TestConcurrent has many initiators read and write amid errors, and commands that aren't
// queued between them: all are done, and none is done wrongly.
func TestConcurrent(t *testing.T) {
	t.Run("memory", func(t *testing.T) { concurrent(t, newHost(t, 1<<20, ata.Options{QueueDepth: 8})) })
	t.Run("slow", func(t *testing.T) {
		s, err := mem.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		concurrent(t, hostOf(t, slow{s}, ata.Options{}))
	})
}

// slow is a store that lets others go first.
type slow struct{ store.Store }

func (s slow) Blocking() bool { return true }

func (s slow) ReadAt(p []byte, off int64) (int, error) {
	runtime.Gosched()
	return s.Store.ReadAt(p, off)
}

func (s slow) WriteAt(p []byte, off int64) (int, error) {
	runtime.Gosched()
	return s.Store.WriteAt(p, off)
}

func concurrent(t *testing.T, h *host) {
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(2, uint64(i)))
			n := &lun.Nexus{Name: fmt.Sprint(i)}
			execute := func(cdb string, data []byte, in bool) lun.Command {
				c := lun.Command{Nexus: n, CDB: unhex(t, cdb)}
				if in {
					c.DataIn = pieces(data)
				} else {
					c.DataOut = pieces(data)
				}
				h.unit.Execute(&c)
				return c
			}
			execute("00 00 00 00 00 00", nil, true)
			lba, want := uint64(i*8), make([]byte, 8*512)
			write := func() {
				want = pattern(8*512, byte(r.Uint32()))
				if c := execute(fmt.Sprintf("2a 00 %08x 00 0008 00", lba), want, false); c.Status != lun.Good {
					t.Errorf("%d: write: %x", i, c.Sense)
				}
			}
			write()
			for range 100 {
				switch r.IntN(8) {
				case 0, 1:
					write()
				case 2:
					if c := execute("35 00 00000000 00 0000 00", nil, true); c.Status != lun.Good {
						t.Errorf("%d: flush: %x", i, c.Sense)
					}
				case 3:
					bad := lba + uint64(r.IntN(8))
					h.drive.Spoil(bad, 1)
					c := execute(fmt.Sprintf("28 00 %08x 00 0008 00", lba), make([]byte, 8*512), true)
					if c.Status != lun.CheckCondition || len(c.Sense) < 18 || c.Sense[2] != 3 || uint64(binary.BigEndian.Uint32(c.Sense[3:])) != bad {
						t.Errorf("%d: block %d is bad: %#x, %x", i, bad, c.Status, c.Sense)
					}
					write()
				default:
					got := make([]byte, 8*512)
					if c := execute(fmt.Sprintf("28 00 %08x 00 0008 00", lba), got, true); c.Status != lun.Good || !bytes.Equal(got, want) {
						t.Errorf("%d: read: %#x %x", i, c.Status, c.Sense)
					}
				}
			}
		}()
	}
	wg.Wait()
}

// gate is a store whose reads wait until it is opened, and tell when they have come.
type gate struct {
	store.Store
	came, open chan struct{}
}

func (g *gate) Blocking() bool { return true }

func (g *gate) ReadAt(p []byte, off int64) (int, error) {
	g.came <- struct{}{}
	<-g.open
	return g.Store.ReadAt(p, off)
}

// TestCancel aborts a command that waits for the drive, and those behind it go on.
func TestCancel(t *testing.T) {
	s, err := mem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{s, make(chan struct{}, 8), make(chan struct{})}
	h := hostOf(t, g, ata.Options{})
	start := func(cdb string) (cancel chan struct{}, done chan lun.Status) {
		cancel, done = make(chan struct{}), make(chan lun.Status, 1)
		go func() {
			c := lun.Command{Nexus: h.n, CDB: unhex(t, cdb), DataIn: [][]byte{make([]byte, 512)}, DataOut: [][]byte{make([]byte, 512)}, Cancel: cancel}
			h.unit.Execute(&c)
			done <- c.Status
		}()
		return cancel, done
	}
	_, read := start("28 00 00000000 00 0001 00")
	<-g.came
	cancel, flush := start("35 00 00000000 00 0000 00")
	for sat.Waiting(h.unit) != 1 {
		runtime.Gosched()
	}
	_, write := start("2a 00 00000001 00 0001 00")
	for sat.Waiting(h.unit) != 2 {
		runtime.Gosched()
	}
	close(cancel)
	<-flush
	if s := <-write; s != lun.Good {
		t.Errorf("the command behind ended with %#x", s)
	}
	close(g.open)
	if s := <-read; s != lun.Good {
		t.Errorf("the command before ended with %#x", s)
	}
	h.do("35 00 00000000 00 0000 00", nil, 0).good()
}

// TestPriority gives a queued command a high priority, which the drive's log shows.
func TestPriority(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	h.drive.Spoil(5, 1)
	for _, p := range []struct {
		priority uint8
		attr     lun.TaskAttribute
		want     byte
	}{{0, lun.Simple, 0}, {15, lun.Simple, 0}, {1, lun.Simple, 0x80}, {0, lun.HeadOfQueue, 0x80}} {
		c := lun.Command{Nexus: h.n, CDB: unhex(t, "28 00 00000005 00 0001 00"), DataIn: [][]byte{make([]byte, 512)}, Priority: p.priority, Attr: p.attr}
		h.unit.Execute(&c)
		if got := h.do("85 09 0e 0000 0001 001000000000 00 2f 00", nil, 512).good().data[13]; got != p.want {
			t.Errorf("priority %d, attribute %d: %#x", p.priority, p.attr, got)
		}
	}
}

// TestNoAllocations reads and writes.
func TestNoAllocations(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	data := [][]byte{make([]byte, 4096)}
	h.do("2a 00 00000000 00 0008 00", data[0], 0).good()
	var c lun.Command
	for _, cdb := range [][]byte{unhex(t, "28 00 00000000 00 0008 00"), unhex(t, "2a 00 00000000 00 0008 00")} {
		n := testing.AllocsPerRun(200, func() {
			c.Reset()
			c.Nexus, c.CDB, c.DataIn, c.DataOut = h.n, cdb, data, data
			h.unit.Execute(&c)
		})
		if n > 0 || c.Status != lun.Good {
			t.Errorf("%x: %v allocations, status %#x", cdb, n, c.Status)
		}
	}
}

// FuzzExecute runs a chain of commands: each a length and so many bytes of CDB, and data
// for all of them.
func FuzzExecute(f *testing.F) {
	kinds := []ata.Options{{Trim: true}, {BlockSize: 4096, QueueDepth: 2}, {QueueDepth: 1, RotationRate: 7200}}
	all := newHost(f, 1<<20, kinds[0])
	list := all.do("a3 0c 00 00 0000 0000ffff 00 00", nil, 65535).good().data[4:]
	for ; len(list) >= 8; list = list[8:] {
		one := all.run([]byte{0xa3, 0x0c, 0x03, list[0], list[2], list[3], 0, 0, 1, 0, 0, 0}, nil, 256).good().data[4:]
		for i := 2; i < len(one)-2 && one[0] != 0x7f; i++ {
			one[i] &= 1
		}
		f.Add(uint8(len(list)), append([]byte{byte(len(one))}, one...), []byte{0, 1, 2}, uint16(512))
	}
	for _, cdb := range []string{"85 08 2e 0000 0001 000000000000 00 ec 00", "85 0d 16 0000 0004 000000100000 40 35 00", "85 19 1d 0004 0000 000000100000 40 60 00", "85 06 20 00d4 0000 00024fc20000 00 b0 00"} {
		b := unhex(f, cdb)
		f.Add(uint8(0), append([]byte{byte(len(b))}, b...), make([]byte, 2048), uint16(2048))
	}
	cancelled := make(chan struct{})
	close(cancelled)
	f.Fuzz(func(t *testing.T, kind uint8, cdbs, data []byte, room uint16) {
		s, err := mem.New(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		d, err := ata.New(s, kinds[int(kind)%len(kinds)])
		if err != nil {
			t.Fatal(err)
		}
		u, err := sat.New(d)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		n := &lun.Nexus{Name: "a"}
		u.Execute(&lun.Command{Nexus: n, CDB: make([]byte, 6)})
		for i := 0; len(cdbs) > 0 && i < 32; i++ {
			size := min(int(cdbs[0]), len(cdbs)-1)
			cdb := slices.Clip(cdbs[1 : 1+size])
			cdbs = cdbs[1+size:]
			out, in := u.DataLength(cdb)
			if out > 1<<32 || in > 1<<32 {
				t.Fatalf("DataLength(%x) = %d, %d", cdb, out, in)
			}
			c := lun.Command{Nexus: n, CDB: cdb, DataOut: pieces(data), DataIn: pieces(make([]byte, room))}
			if len(cdb) > 0 && u.Waits(cdb) {
				c.Cancel = cancelled
			}
			u.Execute(&c)
			if c.Status != lun.Good && c.Status != lun.CheckCondition {
				t.Fatalf("%x: status %#x", cdb, c.Status)
			}
			if (c.Status == lun.CheckCondition) != (len(c.Sense) > 0) || len(c.Sense) > lun.MaxSense {
				t.Fatalf("%x: status %#x with %d bytes of sense data", cdb, c.Status, len(c.Sense))
			}
			if b := c.Sense; len(b) > 0 && int(b[7])+8 != len(b) {
				t.Fatalf("%x: sense data %x", cdb, b)
			}
			if c.InLen > in || c.OutLen > out {
				t.Fatalf("%x moved %d out, %d in; DataLength says %d, %d", cdb, c.OutLen, c.InLen, out, in)
			}
		}
	})
}
