package vhostuser_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"lunlab/lun"
	"lunlab/target/vhostuser"
)

// crc16 is that of T10-DIF, bit by bit.
func crc16(b []byte) (c uint16) {
	for _, x := range b {
		c ^= uint16(x) << 8
		for range 8 {
			top := c & 0x8000
			if c <<= 1; top != 0 {
				c ^= 0x8bb7
			}
		}
	}
	return c
}

// tuples is the protection information of blocks at lba.
func tuples(kind byte, lba uint32, data []byte) (p []byte) {
	for ; len(data) > 0; data, lba = data[512:], lba+1 {
		p = binary.BigEndian.AppendUint16(p, crc16(data[:512]))
		p = append(p, 0x12, 0x34)
		ref := lba
		if kind == 3 {
			ref = 0x55667788
		}
		p = binary.BigEndian.AppendUint32(p, ref)
	}
	return p
}

// TestProtection moves protection information apart from the data, as virtio has it.
func TestProtection(t *testing.T) {
	for _, kind := range []byte{1, 3} {
		for _, sealed := range []bool{true, false} {
			t.Run(fmt.Sprintf("type %d/%v", kind, sealed), func(t *testing.T) {
				o := lun.DiskOptions{Protection: kind}
				path, _ := serve(t, vhostuser.Options{Target: targetOf(t, memoryDisk(t, 1<<20, o))})
				f := dial(t, path, version1|protocol|eventIdx|indirect|t10pi, sealed)
				protected(t, f.queue(2, 16), kind)
			})
		}
	}
}

func protected(t *testing.T, q *queue, kind byte) {
	q.ready(0)
	const blocks = 9
	cdb := func(op byte) []byte {
		b := rw16(op, 5, blocks)
		b[1] = 0x20
		return b
	}
	data := random(3, blocks*512)
	pi := tuples(kind, 5, data)
	q.good(command{cdb: cdb(write16), out: append(bytes.Clone(pi), data...), outPI: len(pi)})
	want := append(bytes.Clone(pi), data...)
	if got := q.good(command{cdb: cdb(read16), in: len(want), inPI: len(pi)}); !bytes.Equal(got, want) {
		t.Error("blocks and protection information aren't what was written")
	}
	// Without room for it, or without any, the device strips and checks, or inserts.
	if got := q.good(command{cdb: cdb(read16), in: len(data)}); !bytes.Equal(got, data) {
		t.Error("blocks alone aren't what was written")
	}
	q.good(command{cdb: cdb(write16), out: data})
	got := q.good(command{cdb: cdb(read16), in: len(want), inPI: len(pi)})
	for i := range blocks {
		if g := got[8*i:][:2]; !bytes.Equal(g, pi[8*i:][:2]) {
			t.Errorf("block %d has the guard tag % x, want % x", i, g, pi[8*i:][:2])
		}
	}
	// What is wrong isn't written.
	for at, code := range map[int]byte{8: 1, 8 + 7: 3} {
		if kind == 3 && code == 3 {
			continue // it isn't looked at
		}
		bad := append(bytes.Clone(pi), data...)
		bad[at] ^= 1
		r := q.run(command{cdb: cdb(write16), out: bad, outPI: len(pi)})
		if r.status != 2 || r.sense[2] != 0xb || r.sense[12] != 0x10 || r.sense[13] != code {
			t.Errorf("byte %d of the protection information is wrong: status %#x, sense % x", at, r.status, r.sense)
		}
	}
	for what, c := range map[string]command{
		"odd length":         {cdb: cdb(read16), in: len(want), inPI: len(pi) - 1},
		"more than there is": {cdb: cdb(read16), in: len(want), inPI: 1 << 30},
		"not asked for":      {cdb: rw16(read16, 5, blocks), in: len(want), inPI: len(pi)},
		"too few":            {cdb: cdb(read16), in: len(want), inPI: len(pi) - 8},
	} {
		if r := q.run(c); r.status != 2 || r.sense[2] != 5 || r.sense[12] != 0x24 {
			t.Errorf("%s: status %#x, sense % x", what, r.status, r.sense)
		}
	}
}
