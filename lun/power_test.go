package lun_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/cache"
)

func TestLosePower(t *testing.T) {
	s := cache.New(mustMem(t, 1<<20), 0)
	h := hostOf(t, s, lun.DiskOptions{})
	o := h.other("b")
	h.aptplRegister(0, 1, 0).good()
	h.prOut(prReserve, 1, 1, 0).good()
	h.do("1b 00 00 00 00 00", nil, 0).good() // STOP
	o.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).conflict()
	h.selectPage(0, "0a0a 041000400000000000 00").good()
	if err := h.disk.LosePower(func() error { return s.PowerCut(nil) }); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*host{h, o} {
		x.do(testReady, nil, 0).attention(lun.ASCPowerOnOrReset)
		x.run(transfer(0x2a, 0, 1, 0), make([]byte, 512), 0).good()
	}
	if keys := h.keys(); len(keys) != 0 {
		t.Errorf("keys %#x after a power cut", keys)
	}
}

// TestLosePowerMeanwhile cuts the power while others write. What they were told
// is durable is there.
func TestLosePowerMeanwhile(t *testing.T) {
	s := cache.New(mustMem(t, 1<<20), 16<<10)
	h := hostOf(t, s, lun.DiskOptions{})
	var writers sync.WaitGroup
	stop := make(chan struct{})
	const blocks = 4
	var durable [blocks]byte
	for lba := range durable {
		x := h.other(string(rune('b' + lba)))
		writers.Go(func() {
			data := make([]byte, 512)
			for i := byte(1); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				for at := range data {
					data[at] = i
				}
				flags := (i & 1) << 3
				if x.run(transfer(0x2a, uint64(lba), 1, flags), data, 0).status != lun.Good {
					continue
				}
				if flags == 0 {
					continue // not durable, and overwritten next
				}
				durable[lba] = i
				if a := x.run(transfer(0x28, uint64(lba), 1, 0), nil, 512); a.status == lun.Good && a.data[0] != i {
					t.Errorf("block %d holds %d, and %d was durable", lba, a.data[0], i)
					return
				}
			}
		})
	}
	for range 300 {
		if err := h.disk.LosePower(func() error { return s.PowerCut(nil) }); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	writers.Wait()
}

// TestLosePowerOfZones has write pointers go back to what is durable, and zones
// close.
func TestLosePowerOfZones(t *testing.T) {
	o := lun.DiskOptions{Zones: &lun.ZoneOptions{Size: 64, Conventional: 2, MaxOpen: 2}}
	s := cache.New(mustMem(t, 8*64*512+1000), 0)
	h := hostOf(t, s, o)
	cut := func(h *host, lose func() error) {
		t.Helper()
		if err := h.disk.LosePower(lose); err != nil {
			t.Fatal(err)
		}
		h.do(testReady, nil, 0).attention(lun.ASCPowerOnOrReset)
	}
	data := pattern(8*512, 1)
	h.run(transfer(0x8a, 128, 8, 8), data, 0).good() // FUA
	h.run(transfer(0x8a, 136, 8, 0), data, 0).good()
	h.zone(zOpen, 192).good()
	h.wantZones("00231111")
	cut(h, func() error { return s.PowerCut(nil) })
	h.wantZones("00411111")
	if _, p := h.zones(128, 0); p[0] != 136 {
		t.Errorf("the write pointer is at %d, want 136", p[0])
	}
	if a := h.run(transfer(0x88, 128, 8, 0), nil, len(data)).good(); !bytes.Equal(a.data, data) {
		t.Error("what was durable isn't there")
	}
	h.run(transfer(0x8a, 136, 8, 0), data, 0).good()
	h.zone(zOpen, 192).good() // none of the two that may be open was forgotten

	// Memory loses nothing.
	h = newHost(t, 8*64*512, o)
	h.run(transfer(0x8a, 128, 8, 0), data, 0).good()
	h.zone(zOpen, 192).good()
	cut(h, func() error { return nil })
	h.wantZones("00411111")
	h.run(transfer(0x8a, 136, 8, 0), data, 0).good()
}

// unplugged is a cache that loses its power between a write and what follows it.
type unplugged struct {
	*cache.Store
	armed bool
}

func (u *unplugged) WriteAt(p []byte, off int64) (int, error) {
	n, err := u.Store.WriteAt(p, off)
	if u.armed {
		err = errors.Join(err, u.PowerCut(nil))
	}
	return n, err
}

// TestLosePowerBeforeFlush has a command come when the power is going, and lose
// what it wrote before it is made durable.
func TestLosePowerBeforeFlush(t *testing.T) {
	s := &unplugged{Store: cache.New(mustMem(t, 1<<20), 0)}
	h := hostOf(t, s, lun.DiskOptions{})
	data := pattern(512, 1)
	var during answer
	if err := h.disk.LosePower(func() error {
		s.armed = true
		during = h.run(transfer(0x2a, 9, 1, 8), data, 0)
		s.armed = false
		h.do("12 00 00 0024 00", nil, 36).good() // INQUIRY says nothing that is lost
		h.do("04 00 00 00 00 00", nil, 0).attention(lun.ASCPowerOnOrReset)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	during.attention(lun.ASCPowerOnOrReset)
	h.do(testReady, nil, 0).attention(lun.ASCPowerOnOrReset)
	h.run(transfer(0x2a, 9, 1, 8), data, 0).good()
}
