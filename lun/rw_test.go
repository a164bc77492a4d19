package lun_test

import (
	"bytes"
	"sync"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store"
	"lunlab/lun/store/cache"
	"lunlab/lun/store/mem"
)

// transfer is a command of the READ and WRITE family with its fields in place.
func transfer(code byte, lba uint64, n uint32, flags byte) []byte {
	switch code >> 5 {
	case 0:
		return cat([]byte{code, byte(lba >> 16), byte(lba >> 8), byte(lba), byte(n), 0})
	case 1, 2:
		return cat([]byte{code, flags}, be(4, lba), []byte{0}, be(2, uint64(n)), []byte{0})
	case 5:
		return cat([]byte{code, flags}, be(4, lba), be(4, uint64(n)), []byte{0, 0})
	}
	return cat([]byte{code, flags}, be(8, lba), be(4, uint64(n)), []byte{0, 0})
}

func TestReadWrite(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		h := newHost(t, 1<<20, lun.DiskOptions{BlockSize: bs})
		last := uint64(1<<20/bs - 1)
		big := newHost(t, 1<<30, lun.DiskOptions{BlockSize: bs, MaxTransfer: 20})
		big.run(transfer(0x88, 0, 20, 0), nil, 20*bs).good()
		big.run(transfer(0x88, 0, 21, 0), nil, 21*bs).field(10, 7)
		big.run(transfer(0x2a, 0, 21, 0), make([]byte, 21*bs), 0).field(7, 7)
		for i, c := range []struct{ write, read byte }{
			{0x0a, 0x08}, {0x2a, 0x28}, {0xaa, 0xa8}, {0x8a, 0x88}, {0x2e, 0x88}, {0xae, 0x28}, {0x8e, 0xa8},
		} {
			want := pattern(3*bs, byte(i))
			if a := h.run(transfer(c.write, uint64(5*i), 3, 0), want, 0).good(); a.out != uint64(3*bs) {
				t.Errorf("%x: OutLen %d, want %d", a.cdb, a.out, 3*bs)
			}
			if a := h.run(transfer(c.read, uint64(5*i), 3, 0), nil, 3*bs).good(); !bytes.Equal(a.data, want) {
				t.Errorf("%x: not what %x wrote", a.cdb, c.write)
			}
			for _, code := range []byte{c.write, c.read} {
				out := []byte(nil)
				if code == c.write {
					out = want
				}
				h.run(transfer(code, last, 2, 0), out, 3*bs).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
				h.run(transfer(code, last+1, 1, 0), out, 3*bs).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
				if code>>5 != 0 {
					h.run(transfer(code, 0, 0, 0), nil, 0).good()
					h.run(transfer(code, last+1, 0, 0), nil, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
				}
				if code>>5 == 4 {
					h.run(transfer(code, 1<<63, 1, 0), out, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
					h.run(transfer(code, 1<<64-1, 2, 0), out, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
					h.run(transfer(code, 0, 1<<32-1, 0), out, 0).fails(lun.IllegalRequest, lun.ASCLBAOutOfRange)
				}
			}
		}
	}
}

// A WRITE(6) or READ(6) of 0 blocks is one of 256.
func TestSixByteZeroIs256(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	want := pattern(256*512, 1)
	h.do("0a 00 00 01 00 00", want, 0).good()
	if a := h.do("08 00 00 01 00 00", nil, 256*512).good(); !bytes.Equal(a.data, want) {
		t.Error("READ(6) of 256 blocks doesn't match")
	}
}

func TestShortBuffers(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	want := pattern(2*512, 9)
	h.do("2a 00 00000000 00 0002 00", want, 0).good()
	// One block and a bit of two: the whole block is written.
	if a := h.do("2a 00 00000000 00 0002 00", make([]byte, 700), 0).good(); a.out != 1024 {
		t.Errorf("OutLen %d, want 1024", a.out)
	}
	a := h.do("28 00 00000000 00 0002 00", nil, 1024).good()
	if !bytes.Equal(a.data, cat(make([]byte, 512), want[512:])) {
		t.Error("a short WRITE wrote other than its one whole block")
	}
	if a := h.do("28 00 00000000 00 0002 00", nil, 100).good(); a.in != 1024 || !bytes.Equal(a.data, make([]byte, 100)) {
		t.Errorf("InLen %d, want 1024", a.in)
	}
	if a := h.do("28 00 00000000 00 0001 00", nil, 1024).good(); a.in != 512 || len(a.data) != 512 {
		t.Errorf("InLen %d, want 512", a.in)
	}
	h.do("2a 00 00000000 00 0002 00", nil, 0).good()
}

func TestDataLength(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{Thin: true, MaxTransfer: 100})
	for _, c := range []struct {
		cdb     []byte
		out, in uint64
	}{
		{transfer(0x28, 0, 100, 0), 0, 51200},
		{transfer(0x28, 0, 101, 0), 0, 0},
		{transfer(0x28, 2047, 2, 0), 0, 0},
		{transfer(0x28, 0, 1, 0x04), 0, 0}, // a reserved bit
		{transfer(0x8a, 0, 7, 0x08), 3584, 0},
		{[]byte{0x08, 0, 0, 0, 0, 0}, 0, 0}, // 256 blocks
		{transfer(0x2f, 0, 7, 0x02), 3584, 0},
		{transfer(0x2f, 0, 7, 0x06), 512, 0},
		{transfer(0x2f, 0, 7, 0), 0, 0},
		{transfer(0x93, 0, 7, 0), 1024, 0},
		{transfer(0x93, 0, 7, 1), 0, 0},
		{[]byte{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0}, 3584, 0},
		{[]byte{0x12, 0, 0, 1, 2, 0}, 0, 258},
		{[]byte{0x42, 0, 0, 0, 0, 0, 0, 1, 2, 0}, 258, 0},
		{[]byte{0xff, 0, 0, 0, 0, 0}, 0, 0},
		{[]byte{0x28}, 0, 0},
		{nil, 0, 0},
	} {
		if out, in := h.disk.DataLength(c.cdb); out != c.out || in != c.in {
			t.Errorf("DataLength(%x) = %d, %d; want %d, %d", c.cdb, out, in, c.out, c.in)
		}
	}
}

func TestReadOnly(t *testing.T) {
	for _, h := range []*host{
		newHost(t, 1<<20, lun.DiskOptions{ReadOnly: true, Thin: true}),
		hostOf(t, cache.New(guarded{mustMem(t, 1<<20)}, 1<<20), lun.DiskOptions{Thin: true}),
	} {
		block := make([]byte, 1024)
		for _, code := range []byte{0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x41, 0x93, 0x8b} {
			h.run(transfer(code, 0, 1, 0), block, 0).fails(lun.DataProtect, lun.ASCWriteProtected)
		}
		for _, c := range []struct {
			cdb string
			out []byte
		}{
			{"89 00 0000000000000000 000000 01 00 00", block},
			{"42 00 00000000 00 0008 00", make([]byte, 8)},
			{"04 00 00 00 00 00", nil},
			{"48 02 0000000000 0000 00", nil},
		} {
			h.do(c.cdb, c.out, 0).fails(lun.DataProtect, lun.ASCWriteProtected)
		}
		h.run(transfer(0x28, 0, 1, 0), nil, 512).good()
		if a := h.do("1a 08 3f 00 ff 00", nil, 255).good(); a.data[2]&0x80 == 0 {
			t.Error("MODE SENSE doesn't show WP")
		}
	}
}

// guarded is a store that is read-only.
type guarded struct{ store.Sparse }

func (guarded) ReadOnly() bool { return true }

func TestNoAllocations(t *testing.T) {
	s, err := mem.New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	d, err := lun.NewDisk(s, lun.DiskOptions{Thin: true})
	if err != nil {
		t.Fatal(err)
	}
	n := &lun.Nexus{Name: "n"}
	data := pieces(make([]byte, 64<<10))
	write, read := transfer(0x2a, 64, 128, 0), transfer(0x28, 64, 128, 0)
	var c lun.Command
	run := func() {
		c.Reset()
		c.Nexus, c.CDB, c.DataOut = n, write, data
		d.Execute(&c)
		c.Reset()
		c.Nexus, c.CDB, c.DataIn = n, read, data
		d.Execute(&c)
		d.DataLength(read)
	}
	run()
	run()
	if c.Status != lun.Good {
		t.Fatalf("status %#x, sense %x", c.Status, c.Sense)
	}
	if got := testing.AllocsPerRun(100, run); got != 0 {
		t.Errorf("a WRITE and a READ allocate %v times", got)
	}
}

// COMPARE AND WRITE counts up a block from several goroutines, while others
// write and read beside it; each exchange counts once.
func TestCompareAndWriteIsAtomic(t *testing.T) {
	h := newHost(t, 1<<20, lun.DiskOptions{})
	const workers, each = 4, 100
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			o := &host{t: t, disk: h.disk, n: &lun.Nexus{Name: "w", Initiator: iscsiID("w" + string(rune('a'+w)))}}
			o.run([]byte{0, 0, 0, 0, 0, 0}, nil, 0)
			for done := 0; done < each; {
				now := o.run(transfer(0x28, 10, 2, 0), nil, 1024).data
				next := bytes.Clone(now)
				v := uint32(now[0])<<8 | uint32(now[1])
				for i := 0; i < len(next); i += 2 {
					if uint32(now[i])<<8|uint32(now[i+1]) != v {
						t.Error("a READ saw half a COMPARE AND WRITE")
						return
					}
					next[i], next[i+1] = byte((v+1)>>8), byte(v+1)
				}
				a := o.do("89 00 000000000000000a 000000 02 00 00", cat(now, next), 0)
				if a.status == lun.Good {
					done++
				} else {
					a.fails(lun.Miscompare, lun.ASCMiscompareDuringVerify)
				}
				o.run(transfer(0x2a, 100, 1, 0), next[:512], 0)
			}
		})
	}
	wg.Wait()
	a := h.run(transfer(0x28, 10, 1, 0), nil, 512).good()
	if got := int(a.data[0])<<8 | int(a.data[1]); got != workers*each {
		t.Errorf("counted to %d, want %d", got, workers*each)
	}
}
