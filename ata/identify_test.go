package ata_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"lunlab/ata"
	"lunlab/test/need"
)

// TestIdentify checks words against ACS-4 table 46.
func TestIdentify(t *testing.T) {
	o := ata.Options{
		Model: "Model", Serial: "SN1", Firmware: "FW", WWN: 0x5001405123456789, Trim: true,
		PhysicalExponent: 3, LowestAligned: 1, FormFactor: 3, EraseTime: 3 * time.Minute,
	}
	h := newHost(t, 64<<20, o)
	w := h.identify()
	for i, want := range map[int]uint16{
		0: 0x0040, 2: 0xc837, 10: 'S'<<8 | 'N', 11: '1'<<8 | ' ', 19: ' '<<8 | ' ', 23: 'F'<<8 | 'W', 27: 'M'<<8 | 'o',
		48: 0x4001, 49: 0x2f00, 53: 6, 60: 0x0000, 61: 2, 69: 0x4c20, 75: 31, 76: 0x950e, 77: 0x46, 78: 0xc0, 79: 0x40,
		80: 0x0f00, 83: 0x7408, 84: 0x6163, 88: 0x407f, 89: 0x8002, 90: 0x8002, 91: 0xfe, 92: 0xfffe,
		100: 0, 101: 2, 102: 0, 103: 0, 105: 8, 106: 0x6003, 108: 0x5001, 109: 0x4051, 110: 0x2345, 111: 0x6789,
		117: 0, 119: 0x414c, 120: 0x410c, 128: 0x21, 168: 3, 169: 1, 209: 0x4007, 217: 1, 222: 0x10ff,
	} {
		if w[i] != want {
			t.Errorf("word %d is %#04x, want %#04x", i, w[i], want)
		}
	}
	if len(h.log(0x30, 1, 1)) != 512 || !bytes.Equal(h.log(0x30, 1, 1), h.good(ata.Taskfile{Command: 0xec}, nil)) {
		t.Error("page 1 of the IDENTIFY DEVICE data log isn't IDENTIFY DEVICE data")
	}

	o = ata.Options{BlockSize: 4096, QueueDepth: 1, RotationRate: 7200}
	h = newHost(t, 64<<20, o)
	w = h.identify()
	for i, want := range map[int]uint16{60: 0x4000, 61: 0, 69: 0x0c00, 75: 0, 76: 0x840e, 77: 6, 78: 0x40, 100: 0x4000, 106: 0x5000, 117: 2048, 168: 2, 169: 0, 209: 0, 217: 7200} {
		if w[i] != want {
			t.Errorf("4Kn: word %d is %#04x, want %#04x", i, w[i], want)
		}
	}
	h.fails(queued(0x60, 0, 0, 1), nil, ata.ErrorABRT)
	h.fails(ata.Taskfile{Command: 0x06, Feature: 1, Count: 1}, make([]byte, 512), ata.ErrorABRT)
}

// TestOptions refuses what can't be.
func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    ata.Options
		want string
	}{
		{ata.Options{BlockSize: 520}, "neither 512 nor 4096"},
		{ata.Options{PhysicalExponent: 16}, "above 15"},
		{ata.Options{LowestAligned: 1}, "not in the first physical one"},
		{ata.Options{Model: strings.Repeat("x", 41)}, "longer than 40"},
		{ata.Options{Serial: "ä"}, "printable"},
		{ata.Options{WWN: 6 << 60}, "NAA 6"},
		{ata.Options{QueueDepth: 33}, "not 1 to 32"},
		{ata.Options{RotationRate: 2}, "rotation rate"},
		{ata.Options{FormFactor: 6}, "form factor"},
	} {
		if _, err := ata.New(mustMem(t, 1<<20), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	if _, err := ata.New(mustMem(t, 511), ata.Options{}); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Error(err)
	}
	if _, err := ata.New(&failing{Store: mustMem(t, 512)}, ata.Options{Trim: true}); err == nil || !strings.Contains(err.Error(), "unmap") {
		t.Error(err)
	}
}

// TestHdparm has hdparm say what it makes of IDENTIFY DEVICE data.
func TestHdparm(t *testing.T) {
	hdparm := need.Program(t, "hdparm", "hdparm")
	for _, c := range []struct {
		o    ata.Options
		has  []string
		lack []string
	}{
		{ata.Options{Model: "LUNLAB SSD", Serial: "S123", Trim: true, PhysicalExponent: 3}, []string{
			"Model Number:       LUNLAB SSD", "Serial Number:      S123", "Supported: 11 10 9 8",
			"LBA48  user addressable sectors:      131072", "Logical  Sector size:                   512 bytes", "Physical Sector size:                  4096 bytes",
			"Nominal Media Rotation Rate: Solid State Device", "Queue depth: 32", "R/W multiple sector transfer: Max = 16	Current = 16", "Advanced power management level: 254",
			"*	Native Command Queueing (NCQ)", "*	NCQ priority information", "*	Data Set Management TRIM supported (limit 8 blocks)", "*	Deterministic read ZEROs after TRIM",
			"*	64-bit World wide name", "*	SMART self-test", "*	WRITE_UNCORRECTABLE_EXT command", "*	SANITIZE feature set", "*	BLOCK_ERASE_EXT command", "*	Gen3 signaling speed (6.0Gb/s)",
			"Checksum: correct", "	supported: enhanced erase", "not	locked", "udma0 udma1 udma2 udma3 udma4 udma5 *udma6",
		}, nil},
		{ata.Options{BlockSize: 4096, RotationRate: 7200, QueueDepth: 1}, []string{
			"Logical/Physical Sector size:          4096 bytes|Logical  Sector size:                  4096 bytes", "Nominal Media Rotation Rate: 7200", "Form Factor: 3.5 inch",
		}, []string{"TRIM", "NCQ"}},
	} {
		h := newHost(t, 64<<20, c.o)
		cmd := exec.Command(hdparm, "--Istdin")
		in := new(bytes.Buffer)
		for b := h.good(ata.Taskfile{Command: 0xec}, nil); len(b) > 0; b = b[2:] {
			fmt.Fprintf(in, "%04x ", binary.LittleEndian.Uint16(b))
		}
		cmd.Stdin = in
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("hdparm: %v\n%s", err, out)
		}
		for _, want := range c.has {
			found := false
			for _, w := range strings.Split(want, "|") {
				found = found || strings.Contains(string(out), w)
			}
			if !found {
				t.Errorf("hdparm doesn't say %q", want)
			}
		}
		for _, lack := range c.lack {
			if strings.Contains(string(out), lack) {
				t.Errorf("hdparm says %q", lack)
			}
		}
		if t.Failed() {
			t.Logf("%s", out)
		}
	}
}
