package ata_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"lunlab/ata"
)

// TestFIS has commands come as FISes and looks at those that they end with
// (SATA 3.5 10.5).
func TestFIS(t *testing.T) {
	h := newHost(t, 1<<20, ata.Options{})
	h.drive.Spoil(0x234, 1)
	for _, c := range []struct{ name, command, answer string }{
		{"READ DMA EXT", "2780250033010040000000000200000000000000", "34405000000000000000000000000000" + "00000000"},
		{"READ DMA EXT of a bad sector", "2780250034020040000000000100000000000000", "34405140340200400000000000000000" + "00000000"},
		{"READ SECTOR(S)", "2780200033010040000000000300000000000000", "5f605800000000000000000000000050" + "00020000"},
		{"IDENTIFY DEVICE", "2780ec0000000000000000000000000000000000", "5f605800000000000000000000000050" + "00020000"},
		{"READ MULTIPLE EXT", "2780290000000040000000001200000000000000", "5f605800000000000000000000000050" + "00040000"},
		{"WRITE SECTOR(S)", "2780300033010040000000000100000000000000", "34405000000000000000000000000000" + "00000000"},
		{"READ FPDMA QUEUED", "278060010000004000000000e800000000000000", "a140500000000020"},
		{"NOP", "2780000000000000000000000000000000000000", "34405104000000000000000000000000" + "00000000"},
		{"CHECK POWER MODE", "2780e50000000000000000000000000000000000", "344050000000000000000000ff000000" + "00000000"},
	} {
		fis, err := hex.DecodeString(c.command)
		if err != nil {
			t.Fatal(err)
		}
		var task ata.Task
		if command, err := task.Parse(fis); !command || err != nil {
			t.Fatalf("%s: %v, %v", c.name, command, err)
		}
		task.DataIn, task.DataOut = [][]byte{make([]byte, 18*512)}, [][]byte{make([]byte, 512)}
		h.drive.Do(&task)
		if got := hex.EncodeToString(task.AppendFIS(nil)); got != c.answer {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.answer)
		}
		if again := task.Taskfile.AppendFIS(nil); !bytes.Equal(again, fis) {
			t.Errorf("%s: %x came back as %x", c.name, fis, again)
		}
	}
	var f ata.Taskfile
	if command, err := f.Parse(append([]byte{0x27, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ata.SRST}, 0, 0, 0, 0)); command || err != nil || f.Control != ata.SRST {
		t.Errorf("SRST: %v, %v, %+v", command, err, f)
	}
	for _, bad := range [][]byte{nil, make([]byte, 19), make([]byte, 20)} {
		if _, err := f.Parse(bad); err == nil {
			t.Errorf("%x is a FIS", bad)
		}
	}
}
