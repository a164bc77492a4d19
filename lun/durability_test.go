package lun_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/cache"
	"lunlab/lun/store/file"
)

// TestPowerCut writes through a disk whose cache loses what isn't durable. What
// FUA, SYNCHRONIZE CACHE or a disk without a write cache said is durable is
// there afterwards, with its protection information.
func TestPowerCut(t *testing.T) {
	for _, c := range []struct {
		name string
		o    lun.DiskOptions
		make func(h *host, data []byte)
		kept bool
	}{
		{"WRITE", lun.DiskOptions{}, func(h *host, data []byte) { h.run(transfer(0x2a, 9, 1, 0), data, 0).good() }, false},
		{"WRITE FUA", lun.DiskOptions{}, func(h *host, data []byte) { h.run(transfer(0x2a, 9, 1, 8), data, 0).good() }, true},
		{"WRITE(16) FUA", lun.DiskOptions{Protection: 1}, func(h *host, data []byte) { h.run(transfer(0x8a, 9, 1, 8), data, 0).good() }, true},
		{"WRITE without a cache", lun.DiskOptions{WriteThrough: true}, func(h *host, data []byte) { h.run(transfer(0x0a, 9, 1, 0), data, 0).good() }, true},
		{"WRITE AND VERIFY", lun.DiskOptions{}, func(h *host, data []byte) { h.run(transfer(0x2e, 9, 1, 0), data, 0).good() }, true},
		{"READ FUA", lun.DiskOptions{}, func(h *host, data []byte) {
			h.run(transfer(0x2a, 9, 1, 0), data, 0).good()
			h.run(transfer(0x28, 9, 1, 8), nil, 512).good()
		}, true},
		{"SYNCHRONIZE CACHE", lun.DiskOptions{Protection: 1}, func(h *host, data []byte) {
			h.run(transfer(0x2a, 9, 1, 0), data, 0).good()
			h.do("35 00 00000000 00 0000 00", nil, 0).good()
		}, true},
		{"SYNCHRONIZE CACHE IMMED", lun.DiskOptions{}, func(h *host, data []byte) {
			h.run(transfer(0x2a, 9, 1, 0), data, 0).good()
			h.do("35 02 00000000 00 0000 00", nil, 0).good()
		}, true},
		{"START STOP UNIT", lun.DiskOptions{}, func(h *host, data []byte) {
			h.run(transfer(0x2a, 9, 1, 0), data, 0).good()
			h.do("1b 00 00 00 00 00", nil, 0).good()
			h.do("1b 00 00 00 01 00", nil, 0).good()
		}, true},
		{"COMPARE AND WRITE FUA", lun.DiskOptions{}, func(h *host, data []byte) {
			h.do("89 08 0000000000000009 000000 01 00 00", cat(make([]byte, 512), data), 0).good()
		}, true},
	} {
		s := cache.New(mustMem(t, 1<<20), 0)
		h := hostOf(t, s, c.o)
		data := pattern(512, 3)
		h.run(transfer(0x2a, 20, 1, 0), data, 0).good() // beside it
		c.make(h, data)
		if err := s.PowerCut(nil); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, 512)
		if c.kept {
			want = data
		}
		if a := h.run(transfer(0x28, 9, 1, 0), nil, 512).good(); string(a.data) != string(want) {
			t.Errorf("%s: the block is there: %v, want %v", c.name, string(a.data) == string(data), c.kept)
		}
	}
}

// TestClose takes an error of the last flush for one of Close's, which closes
// the store all the same.
func TestClose(t *testing.T) {
	s := &broken{Store: mustMem(t, 1<<20)}
	h := hostOf(t, s, lun.DiskOptions{})
	h.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
	if err := h.disk.Close(); err != nil || s.syncs.Load() != 1 {
		t.Errorf("Close: %v, after %d syncs; want 1", err, s.syncs.Load())
	}
	s = &broken{Store: mustMem(t, 1<<20)}
	h = hostOf(t, s, lun.DiskOptions{})
	odd := errors.New("odd")
	s.fail(odd)
	if err := h.disk.Close(); !errors.Is(err, odd) {
		t.Errorf("Close: %v; want that the flush failed", err)
	}
	if err := s.Store.Close(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("the store wasn't closed: %v", err)
	}
}

// killedDisk is set for the process that TestKill kills, killedZones for that of
// TestKillZones.
const (
	killedDisk  = "LUNLAB_TEST_KILLED_DISK"
	killedZones = "LUNLAB_TEST_KILLED_ZONES"
)

const killBlocks = 64

// TestMain turns the test binary into that process.
func TestMain(m *testing.M) {
	if path := os.Getenv(killedDisk); path != "" {
		if err := writeUntilKilled(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if path := os.Getenv(killedZones); path != "" {
		if err := writeZonesUntilKilled(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// writeUntilKilled writes ever higher numbers to random blocks, and says on
// standard output which are durable.
func writeUntilKilled(path string) error {
	s, err := file.Open(path, file.Options{})
	if err != nil {
		return err
	}
	d, err := lun.NewDisk(s, lun.DiskOptions{})
	if err != nil {
		return err
	}
	n := &lun.Nexus{Name: "n"}
	d.Execute(&lun.Command{Nexus: n, CDB: make([]byte, 6)})
	data := make([]byte, 512)
	for i := uint64(1); ; i++ {
		lba := rand.Uint64N(killBlocks)
		for at := 0; at < len(data); at += 8 {
			binary.BigEndian.PutUint64(data[at:], i)
		}
		c := lun.Command{Nexus: n, CDB: transfer(0x2a, lba, 1, byte(i%2)<<3), DataOut: pieces(data)}
		d.Execute(&c)
		if c.Status != lun.Good {
			return fmt.Errorf("status %#x", c.Status)
		}
		if i%2 == 1 {
			fmt.Println(lba, i)
		}
	}
}

// TestKill kills a process in the middle of writes, many times over: what it
// said is durable is there, or something newer, and no block is torn.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	s, err := file.Open(path, file.Options{Size: killBlocks * 512})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	for round := range 20 {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, killBlocks*512); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), killedDisk+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		watchdog := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		var durable [killBlocks]uint64
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var lba, i uint64
			if n, _ := fmt.Sscan(lines.Text(), &lba, &i); n == 2 && lba < killBlocks {
				durable[lba] = i
				if acknowledged++; i == 1 { // it has begun
					watchdog.Reset(time.Duration(2*round) * time.Millisecond)
				}
			}
		}
		watchdog.Stop()
		cmd.Process.Kill()
		cmd.Wait()
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for lba, want := range durable {
			block := got[lba*512:][:512]
			v := binary.BigEndian.Uint64(block)
			for at := 8; at < 512; at += 8 {
				if binary.BigEndian.Uint64(block[at:]) != v {
					t.Fatalf("round %d: block %d is torn", round, lba)
				}
			}
			if v < want {
				t.Fatalf("round %d: block %d holds %d, and %d was acknowledged as durable", round, lba, v, want)
			}
		}
	}
	if acknowledged == 0 {
		t.Error("nothing was acknowledged before any of the kills")
	}
}
