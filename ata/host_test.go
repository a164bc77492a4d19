package ata_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"lunlab/ata"
	"lunlab/lun/store"
	"lunlab/lun/store/mem"
)

// host issues tasks to a drive and checks how they end.
type host struct {
	t     testing.TB
	drive *ata.Drive
}

func newHost(t testing.TB, size int64, o ata.Options) *host {
	t.Helper()
	return hostOf(t, mustMem(t, size), o)
}

func hostOf(t testing.TB, s store.Store, o ata.Options) *host {
	t.Helper()
	d, err := ata.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return &host{t, d}
}

func mustMem(t testing.TB, size int64) *mem.Store {
	t.Helper()
	s, err := mem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// do runs a command with out as its data and room for what it answers with.
func (h *host) do(f ata.Taskfile, out []byte) *ata.Task {
	h.t.Helper()
	_, in := h.drive.DataLength(&f)
	room := make([]byte, in)
	t := &ata.Task{Taskfile: f, DataOut: pieces(out), DataIn: pieces(room)}
	h.drive.Do(t)
	t.DataIn = [][]byte{room}
	return t
}

// good requires success, and returns the data.
func (h *host) good(f ata.Taskfile, out []byte) []byte {
	h.t.Helper()
	return h.ok(f, out).DataIn[0]
}

func (h *host) ok(f ata.Taskfile, out []byte) *ata.Task {
	h.t.Helper()
	t := h.do(f, out)
	if t.Failed() {
		h.t.Fatalf("%+v: ending %d, %+v; want success", f, t.Ending, t.Answer)
	}
	return t
}

// fails requires an error with these bits.
func (h *host) fails(f ata.Taskfile, out []byte, bits byte) *ata.Task {
	h.t.Helper()
	t := h.do(f, out)
	if !t.Failed() || t.Ending == ata.NoAnswer || t.Answer.Error != bits {
		h.t.Fatalf("%+v: ending %d, %+v; want error %#02x", f, t.Ending, t.Answer, bits)
	}
	return t
}

// pieces cuts b unevenly, as scatter lists may be.
func pieces(b []byte) (list [][]byte) {
	for n := 7; len(b) > n; n = n*3 + 1 {
		list = append(list, b[:n])
		b = b[n:]
	}
	return append(list, b)
}

// pattern is n bytes that differ with seed and place.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ seed
	}
	return b
}

// identify returns the words of IDENTIFY DEVICE, whose checksum it checks.
func (h *host) identify() (w [256]uint16) {
	h.t.Helper()
	b := h.good(ata.Taskfile{Command: 0xec}, nil)
	sum := byte(0)
	for i, x := range b {
		sum += x
		if i%2 == 0 {
			w[i/2] = binary.LittleEndian.Uint16(b[i:])
		}
	}
	if b[510] != 0xa5 || sum != 0 {
		h.t.Errorf("integrity word %02x%02x: the sum is %#x", b[511], b[510], sum)
	}
	return w
}

// log reads pages of a log by READ LOG EXT.
func (h *host) log(address byte, page, count uint16) []byte {
	h.t.Helper()
	return h.good(readLog(address, page, count), nil)
}

func readLog(address byte, page, count uint16) ata.Taskfile {
	return ata.Taskfile{Command: 0x2f, Count: count, LBA: uint64(address) | uint64(page&0xff)<<8 | uint64(page>>8)<<32}
}

// read28 and the others are a command in its two forms.
func cmd28(code byte, lba uint64, n uint16) ata.Taskfile {
	return ata.Taskfile{Command: code, Count: n, LBA: lba & 0xffffff, Device: 0x40 | byte(lba>>24)}
}

func cmd48(code byte, lba uint64, n uint16) ata.Taskfile {
	return ata.Taskfile{Command: code, Count: n, LBA: lba, Device: 0x40}
}

func queued(code byte, tag int, lba uint64, n uint16) ata.Taskfile {
	return ata.Taskfile{Command: code, Feature: n, Count: uint16(tag) << 3, LBA: lba, Device: 0x40}
}

func (h *host) same(what string, got, want []byte) {
	h.t.Helper()
	if !bytes.Equal(got, want) {
		h.t.Errorf("%s: other data than was written", what)
	}
}
