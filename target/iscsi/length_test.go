package iscsi_test

import (
	"bytes"
	"strings"
	"testing"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
)

// TestTooLong moves as much as a command may, and a block more: that fails, and
// no part of it is moved.
func TestTooLong(t *testing.T) {
	s, err := mem.New(128 << 20)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{BlockSize: 4096, MaxTransfer: 64 << 20 / 4096})
	if err != nil {
		t.Fatal(err)
	}
	const number = 3
	l := newLab(t, nil)
	if _, err := l.tgt.Device.Add(number, target.NewMeter(disk), target.Limits{}); err != nil {
		t.Fatal(err)
	}
	r := dial(t, l.addr)
	r.login("MaxRecvDataSegmentLength=512", "ImmediateData=Yes")
	on := func(h *header) *header { return h.put(8, 0, number) }
	for range 3 {
		r.send(on(r.command(0x80, 0, 0)), nil)
		r.recv(0x21)
	}
	const bound = iscsi.MaxTransfer / 4096
	refused := func(kind string) {
		t.Helper()
		p := r.recv(0x21)
		if p.bhs[3] != 2 {
			t.Fatalf("%s beyond the bound: %v", kind, p)
		}
		if key, code := p.sense(); key != 5 || code != 0x2400 {
			t.Errorf("%s beyond the bound: sense %x/%04x, want 5/2400", kind, key, code)
		}
	}
	const beyond = bound + bound/64 + 1 // room for protection information, and more
	r.send(on(r.command(0xa0, beyond*4096, write10(0, beyond)...)), bytes.Repeat([]byte{1}, 8192))
	refused("write")
	r.send(on(r.command(0xc0, beyond*4096, read10(0, beyond)...)), nil)
	refused("read")

	// The longest there may be, in the smallest PDUs.
	r.send(on(r.command(0xc0, bound*4096, read10(0, bound)...)), nil)
	for got := 0; ; {
		p := r.recv(0x25)
		if i := bytes.IndexFunc(p.data, func(c rune) bool { return c != 0 }); i >= 0 {
			t.Fatalf("byte %d was written by the command that failed", got+i)
		}
		if got += len(p.data); p.bhs[1]&1 != 0 {
			if got != bound*4096 {
				t.Errorf("read %d bytes, want %d", got, bound*4096)
			}
			break
		}
	}
	r.alive()
}

// TestAllocationLength names as much room as there can be, and is ready for as
// much: what there is to say is sent.
func TestAllocationLength(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	for name, cdb := range map[string][]byte{
		"REPORT SUPPORTED OPERATION CODES": {0xa3, 0x0c, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		"READ CAPACITY(16)":                {0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
		"REPORT LUNS":                      {0xa0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0},
	} {
		r.send(r.command(0xc0, 0xffffffff, cdb...), nil)
		p := r.recv(0x25)
		if len(p.data) == 0 || p.bhs[1]&0x83 != 0x83 || p.u32(44) != 0xffffffff-uint32(len(p.data)) {
			t.Errorf("%s: %v", name, p)
		}
	}
	r.alive()
}

// TestUnitTooLong serves a disk that announces more than a command may move.
func TestUnitTooLong(t *testing.T) {
	s, err := mem.New(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{MaxTransfer: iscsi.MaxTransfer/512 + 1})
	if err != nil {
		t.Fatal(err)
	}
	d := target.New()
	if _, err := d.Add(0, disk, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	_, err = iscsi.NewServer(iscsi.Options{Targets: []*iscsi.Target{{Name: testTarget, Device: d}}})
	if err == nil || !strings.Contains(err.Error(), "LUN 0 may transfer") {
		t.Errorf("got %v, want an error that names LUN 0", err)
	}
}

// TestMaxBuffer makes servers with less memory than a command needs.
func TestMaxBuffer(t *testing.T) {
	s, err := mem.New(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{MaxTransfer: 4 << 20 / 512})
	if err != nil {
		t.Fatal(err)
	}
	d := target.New()
	if _, err := d.Add(0, disk, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{
		-1: "less than", 1<<20 - 1: "less than", 1 << 20: "LUN 0 may transfer", 31 << 20: "LUN 0 may transfer", 33 << 20: "",
	} {
		srv, err := iscsi.NewServer(iscsi.Options{MaxBuffer: limit, Targets: []*iscsi.Target{{Name: testTarget, Device: d}}})
		switch {
		case err == nil:
			srv.Close()
			if want != "" {
				t.Errorf("a MaxBuffer of %d is taken", limit)
			}
		case want == "" || !strings.Contains(err.Error(), want):
			t.Errorf("MaxBuffer %d: %v, want %q", limit, err, want)
		}
	}
}
