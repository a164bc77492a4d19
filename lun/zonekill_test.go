package lun_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/file"
)

// killZone is the length of a zone in blocks, of which the disk has two.
const killZone = 1 << 16

func openZones(path string) (*lun.Disk, error) {
	s, err := file.Open(path, file.Options{})
	if err != nil {
		return nil, err
	}
	return lun.NewDisk(s, lun.DiskOptions{Zones: &lun.ZoneOptions{Size: killZone}})
}

// writeZonesUntilKilled writes one block after the other from the write pointer
// of the first zone on, and says on standard output which are there.
func writeZonesUntilKilled(path string) error {
	d, err := openZones(path)
	if err != nil {
		return err
	}
	n := &lun.Nexus{Name: "n"}
	d.Execute(&lun.Command{Nexus: n, CDB: make([]byte, 6)})
	room := make([]byte, 128)
	c := lun.Command{Nexus: n, CDB: cat([]byte{0x95, 0}, be(8, 0), be(4, 128), []byte{0, 0}), DataIn: [][]byte{room}}
	d.Execute(&c)
	for lba := number(room[64+24 : 64+32]); lba < killZone; lba++ {
		c := lun.Command{Nexus: n, CDB: transfer(0x8a, lba, 1, 0), DataOut: [][]byte{pattern(512, byte(lba))}}
		d.Execute(&c)
		if c.Status != lun.Good {
			return fmt.Errorf("block %d: status %#x, sense %x", lba, c.Status, c.Sense)
		}
		fmt.Println(lba)
	}
	return nil
}

// TestKillZones kills a process that writes to a zone, several times over: the
// write pointer is behind all that was acknowledged, and what lies before it is
// what was written.
func TestKillZones(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zones")
	s, err := file.Open(path, file.Options{Size: 2*killZone*512 + 512})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	acknowledged := uint64(0) // blocks
	for round := range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), killedZones+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		before := acknowledged
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var lba uint64
			if n, _ := fmt.Sscan(lines.Text(), &lba); n == 1 {
				acknowledged = max(acknowledged, lba+1)
			}
			if acknowledged == before+100 {
				cmd.Process.Kill()
			}
		}
		cmd.Wait()
		if acknowledged < before+100 {
			t.Fatalf("round %d: the process ended by itself after block %d", round, acknowledged)
		}
		d, err := openZones(path)
		if err != nil {
			t.Fatal(err)
		}
		h := (&host{t: t, disk: d}).other("a")
		_, pointers := h.zones(0, 0)
		if pointers[0] < acknowledged {
			t.Fatalf("round %d: the write pointer is at %d, and %d blocks were acknowledged", round, pointers[0], acknowledged)
		}
		for lba := range pointers[0] {
			if a := h.run(transfer(0x88, lba, 1, 0), nil, 512).good(); !bytes.Equal(a.data, pattern(512, byte(lba))) {
				t.Fatalf("round %d: block %d isn't what was written", round, lba)
			}
		}
		acknowledged = pointers[0]
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
