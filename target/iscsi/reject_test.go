package iscsi_test

import (
	"bytes"
	"testing"
)

// TestReject sends requests that are wrong in form or place: each gets the
// reason that RFC 7143 11.17.1 names, and the session goes on.
func TestReject(t *testing.T) {
	l := newLab(t, nil)
	const protocol, unsupported, field = 4, 5, 9
	for _, tt := range []struct {
		name string
		h    func(r *raw) (*header, []byte)
		want byte
	}{
		{"opcode of no request", func(r *raw) (*header, []byte) { return hdr(0x4c, 0x80).put32(16, 1).put32(24, r.cmdSN), nil }, unsupported},
		{"opcode of a target", func(r *raw) (*header, []byte) { return hdr(0x21, 0x80).put32(16, 1).put32(24, r.cmdSN), nil }, unsupported},
		{"Login Request", func(r *raw) (*header, []byte) { return r.loginHeader(1, 3), text(names()...) }, protocol},
		{"SNACK at ErrorRecoveryLevel 0", func(r *raw) (*header, []byte) { return hdr(0x10, 0x81).put32(16, 0xffffffff), nil }, 3},
		{"command with a reserved tag", func(r *raw) (*header, []byte) { return r.command(0x80, 0, 0).put32(16, 0xffffffff), nil }, field},
		{"command with a reserved attribute", func(r *raw) (*header, []byte) {
			h := r.command(0x80, 0, 0)
			h[1] |= 7
			return h, nil
		}, field},
		{"command with data and no W", func(r *raw) (*header, []byte) { return r.command(0xc0, 512, read10(0, 1)...), make([]byte, 4) }, field},
		{"command that isn't final and has no W", func(r *raw) (*header, []byte) { return r.command(0x40, 512, read10(0, 1)...), nil }, field},
		{"Data-Out for no task", func(r *raw) (*header, []byte) { return r.dataOut(true, 0x4321, 0x1, 0, 0), make([]byte, 512) }, field},
		{"Data-Out with a reserved tag", func(r *raw) (*header, []byte) { return r.dataOut(true, 0xffffffff, 0x1, 0, 0), make([]byte, 512) }, field},
		{"immediate Data-Out", func(r *raw) (*header, []byte) {
			h := r.dataOut(true, 0x4321, 0x1, 0, 0)
			h[0] |= 0x40
			return h, make([]byte, 512)
		}, field},
		{"NOP-Out without F", func(r *raw) (*header, []byte) { return hdr(0x00, 0).put32(16, 5).put32(24, r.next()), nil }, field},
		{"task management with data", func(r *raw) (*header, []byte) {
			return hdr(0x02, 0x85).put32(16, 5).put32(24, r.next()), []byte("data")
		}, field},
		{"logout for no reason", func(r *raw) (*header, []byte) { return hdr(0x06, 0x85).put32(16, 5).put32(24, r.next()), nil }, field},
		{"text with F and C", func(r *raw) (*header, []byte) {
			return hdr(0x04, 0xc0).put32(16, 5).put32(20, 0xffffffff).put32(24, r.next()), nil
		}, field},
		{"text that isn't", func(r *raw) (*header, []byte) {
			return hdr(0x04, 0x80).put32(16, 5).put32(20, 0xffffffff).put32(24, r.next()), []byte("no equals sign\x00")
		}, protocol},
		{"text that goes on with nothing", func(r *raw) (*header, []byte) {
			return hdr(0x04, 0x80).put32(16, 5).put32(20, 77).put32(24, r.next()), nil
		}, protocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login()
			h, data := tt.h(r)
			r.send(h, data)
			p := r.recv(0x3f)
			if p.bhs[2] != tt.want || p.u32(16) != 0xffffffff || !bytes.Equal(p.data, h[:]) {
				t.Errorf("got reason %d and %x, want %d and %x", p.bhs[2], p.data, tt.want, h[:])
			}
			// What was refused has used up its number: what follows is in turn.
			r.read(0, 1)
			r.alive()
		})
	}
}

// TestOverlapped sends a command with the tag of one that is under way.
func TestOverlapped(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	l.meter.Hold()
	r.send(on1(r.command(0x80, 0, 0)), nil)
	l.inFlight(t, 1)
	tag := 0x1000 + r.itt
	r.send(r.command(0x80, 0, 0).put32(16, tag), nil)
	if p := r.recv(0x3f); p.bhs[2] != 7 {
		t.Fatalf("got %v, want Reject with reason 7", p)
	}
	// And one that waits for data.
	r.send(r.command(0xa0, 1024, write10(0, 2)...), make([]byte, 512))
	q := r.recv(0x31)
	r.send(r.command(0xa0, 1024, write10(0, 2)...).put32(16, q.u32(16)), nil)
	if p := r.recv(0x3f); p.bhs[2] != 7 {
		t.Fatalf("got %v, want Reject with reason 7", p)
	}
	r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 512), make([]byte, 512))
	r.good()
	l.meter.Release()
	r.good()
	r.read(0, 1)
}

// TestBrokenOff are bytes after which nothing that follows can be trusted: the
// connection ends, and the server goes on.
func TestBrokenOff(t *testing.T) {
	l := newLab(t, nil)
	for _, tt := range []struct {
		name string
		keys []string
		send func(r *raw)
	}{
		{"more data than was declared", nil, func(r *raw) {
			h := r.command(0xa0, 1<<20, write10(0, 2048)...)
			h[5], h[6], h[7] = 0x04, 0, 4
			r.sendAs(h, nil)
		}},
		{"all the data that a header can say", nil, func(r *raw) {
			h := hdr(0x40, 0x80).put32(16, 1).put32(20, 0xffffffff)
			h[5], h[6], h[7] = 0xff, 0xff, 0xff
			r.sendAs(h, nil)
		}},
		{"a damaged header", []string{"HeaderDigest=CRC32C"}, func(r *raw) {
			r.nc.Write(append(r.command(0x80, 0, 0)[:], 1, 2, 3, 4))
		}},
		{"half a header", nil, func(r *raw) {
			r.nc.Write(make([]byte, 20))
			r.nc.(interface{ CloseWrite() error }).CloseWrite()
		}},
		{"half the data", nil, func(r *raw) {
			h := r.command(0xa0, 4096, write10(0, 8)...)
			h[6] = 0x10
			r.nc.Write(append(h[:], make([]byte, 100)...))
			r.nc.(interface{ CloseWrite() error }).CloseWrite()
		}},
		{"half the data that an R2T asked for", []string{"ImmediateData=No"}, func(r *raw) {
			r.send(r.command(0xa0, 1<<20, write10(0, 2048)...), nil)
			q := r.recv(0x31)
			h := r.dataOut(true, q.u32(16), q.u32(20), 0, 0)
			h[5] = 0x04
			r.nc.Write(append(h[:], make([]byte, 100000)...))
			r.nc.(interface{ CloseWrite() error }).CloseWrite()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login(tt.keys...)
			tt.send(r)
			r.closed()
		})
	}
	r := dial(t, l.addr)
	r.login()
	r.read(0, 8)
}

// TestAHS sends additional header segments: a longer CDB, one that is none.
func TestAHS(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	send := func(h *header, ahs ...byte) {
		h[4] = byte(len(ahs) / 4)
		r.nc.Write(append(h[:], ahs...))
	}
	// An extended CDB: what is beyond the operation code's length is not read.
	send(r.command(0xc0, 512, read10(0, 1)...), 0, 5, 1, 0, 1, 2, 3, 4)
	if p := r.recv(0x25); len(p.data) != 512 {
		t.Errorf("got %v", p)
	}
	for name, ahs := range map[string][]byte{
		"of no type":           {0, 1, 9, 0},
		"longer than there is": {0, 99, 1, 0},
		"of no length":         {0, 0, 1, 0},
		"bidirectional, short": {0, 3, 2, 0, 1, 2, 0, 0},
		"a CDB that is no CDB": append([]byte{1, 2, 1, 0}, make([]byte, 260)...),
		"two extended CDBs":    {0, 2, 1, 0, 1, 0, 0, 0, 0, 2, 1, 0, 1, 0, 0, 0},
	} {
		h := r.command(0xc0, 512, read10(0, 1)...)
		send(h, ahs...)
		if p := r.recv(0x3f); p.bhs[2] != 9 {
			t.Errorf("%s: got %v", name, p)
		}
	}
	r.read(0, 1)
}
