package iscsi_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"lunlab/target/iscsi"
)

// TestLoginStatuses provokes each status of RFC 7143 11.13.5 that this target can
// have reason for. It has none for these:
//   - 0204, target removed: it remembers no targets that are gone; they are not
//     found, 0203.
//   - 0208, can't include in session: any connection that joins a session can be in
//     it, unless there are too many, 0206, or there is no such session, 020a.
//   - 0300, target error: it is for hardware and software that fail, and nothing of
//     a login can.
func TestLoginStatuses(t *testing.T) {
	ask := func(r *raw, pairs ...string) packet { return r.tryLogin(1, 3, pairs...) }
	redirect := func(permanent bool) func(*iscsi.Options, *iscsi.Target) {
		return func(_ *iscsi.Options, tgt *iscsi.Target) {
			tgt.Redirect = &iscsi.Redirect{Address: "192.0.2.1:3260", Permanent: permanent}
		}
	}
	for _, tt := range []struct {
		want uint16
		set  func(*iscsi.Options, *iscsi.Target)
		do   func(l *lab, r *raw) packet
	}{
		{0x0000, nil, func(_ *lab, r *raw) packet { return ask(r, names()...) }},
		{0x0101, redirect(false), func(_ *lab, r *raw) packet { return ask(r, names()...) }},
		{0x0102, redirect(true), func(_ *lab, r *raw) packet { return ask(r, names()...) }},
		{0x0200, nil, func(_ *lab, r *raw) packet { return ask(r, append(names(), "InitialR2T=No", "InitialR2T=No")...) }},
		{0x0201, withCHAP(false), func(_ *lab, r *raw) packet { return ask(r, names()...) }},
		{0x0202, func(_ *iscsi.Options, tgt *iscsi.Target) {
			tgt.Access = []iscsi.Access{{Initiator: "iqn.2026-01.example:another"}}
		}, func(_ *lab, r *raw) packet { return ask(r, names()...) }},
		{0x0203, nil, func(_ *lab, r *raw) packet {
			return ask(r, "InitiatorName="+testInitiator, "TargetName=iqn.2026-01.example:none")
		}},
		{0x0205, nil, func(_ *lab, r *raw) packet {
			r.send(r.loginHeader(1, 3).put(2, 2, 1), text(names()...))
			return r.recv(0x23)
		}},
		{0x0206, nil, func(l *lab, r *raw) packet {
			first := dial(t, l.addr)
			first.login()
			r.tsih, r.cid = first.tsih, 1
			return ask(r, names()...)
		}},
		{0x0207, nil, func(_ *lab, r *raw) packet { return ask(r, "InitiatorName="+testInitiator) }},
		{0x0209, nil, func(_ *lab, r *raw) packet { return ask(r, append(names()[:2], "SessionType=Odd")...) }},
		{0x020a, nil, func(_ *lab, r *raw) packet {
			r.tsih = 0x4242
			return ask(r, names()...)
		}},
		{0x020b, nil, func(_ *lab, r *raw) packet {
			r.send(hdr(0x40, 0x80).put32(16, 9).put32(20, 0xffffffff), nil)
			return r.recv(0x23)
		}},
		{0x0301, nil, func(l *lab, r *raw) packet {
			// The target is changed while its login is under way.
			r.tryLogin(0, 1, names()...)
			changed := *l.tgt
			if err := l.srv.SetTargets([]*iscsi.Target{&changed}); err != nil {
				t.Fatal(err)
			}
			return ask(r)
		}},
		{0x0302, nil, func(_ *lab, r *raw) packet {
			for range 9 {
				h := r.loginHeader(1, -1)
				h[1] |= 0x40
				r.send(h, bytes.Repeat([]byte("a"), 8000))
				if p := r.recv(0x23); p.u16(36) != 0 {
					return p
				}
			}
			t.Fatal("72,000 bytes of text are taken")
			return packet{}
		}},
	} {
		l := newLab(t, tt.set)
		r := dial(t, l.addr)
		r.t = t
		p := tt.do(l, r)
		if got := p.u16(36); got != tt.want {
			t.Errorf("got status %04x, want %04x", got, tt.want)
		}
		if tt.want == 0 {
			r.alive()
		} else {
			r.closed()
		}
	}
}

// TestRejectReasons provokes each reason of RFC 7143 11.17.1 that this target can
// have. It doesn't have these:
//   - 01, which is reserved, and 0b, negotiation reset, which is obsolete.
//   - 0c, waiting for logout: a target may refuse commands after it has asked for a
//     logout; this one does them, which is milder.
func TestRejectReasons(t *testing.T) {
	const limit = 20 << 20 // of one session
	l := newLab(t, func(o *iscsi.Options, _ *iscsi.Target) { o.MaxBuffer, o.MaxConnections = 4*limit, 1<<20 })
	for _, tt := range []struct {
		name   string
		reason byte
		keys   []string
		// do returns the header that has to come back.
		do func(r *raw) *header
	}{
		{"data digest error", 0x02, []string{"DataDigest=CRC32C"}, func(r *raw) *header {
			h := hdr(0x40, 0x80).put32(16, 1).put32(20, 0xffffffff).put32(24, r.cmdSN)
			h[7] = 4
			r.nc.Write(append(bytes.Clone(h[:]), 1, 2, 3, 4, 5, 6, 7, 8))
			return h
		}},
		{"SNACK of what isn't there", 0x03, []string{"ErrorRecoveryLevel=1"}, func(r *raw) *header {
			h := hdr(0x10, 0x80).put32(16, 0x7777).put32(20, 0xffffffff).put32(28, r.expStatSN)
			r.send(h, nil)
			return h
		}},
		{"Login Request in full feature phase", 0x04, nil, func(r *raw) *header {
			h := r.loginHeader(1, 3)
			r.send(h, text(names()...))
			return h
		}},
		{"an opcode that isn't known", 0x05, nil, func(r *raw) *header {
			h := hdr(0x5c, 0x80).put32(16, 1).put32(24, r.cmdSN)
			r.send(h, nil)
			return h
		}},
		{"more immediate commands than are taken", 0x06, nil, func(r *raw) *header {
			l.meter.Hold()
			t.Cleanup(l.meter.Release)
			var h *header
			for range 65 {
				h = hdr(0x41, 0x81).put(8, 0, unlimited).put32(16, r.tag()).put32(24, r.cmdSN).put32(28, r.expStatSN)
				r.send(h, nil)
			}
			return h
		}},
		{"a task tag in use", 0x07, []string{"ImmediateData=No"}, func(r *raw) *header {
			r.send(r.command(0xa0, 512, write10(0, 1)...), nil)
			q := r.recv(0x31)
			h := r.command(0xa0, 512, write10(0, 1)...).put32(16, q.u32(16))
			r.send(h, nil)
			return h
		}},
		{"DataACK that nothing has asked for", 0x08, []string{"ErrorRecoveryLevel=1"}, func(r *raw) *header {
			h := hdr(0x10, 0x82).put32(16, 0xffffffff).put32(20, 0x7777).put32(28, r.expStatSN).put32(40, 1)
			r.send(h, nil)
			return h
		}},
		{"a reserved task tag", 0x09, nil, func(r *raw) *header {
			h := r.command(0x80, 0, 0).put32(16, 0xffffffff)
			r.send(h, nil)
			return h
		}},
		{"data before its turn for which there is no memory", 0x0a, []string{"MaxRecvDataSegmentLength=262144"}, func(r *raw) *header {
			first := r.command(0x80, 0, 0)
			var h *header
			data := make([]byte, 256<<10)
			for range limit/len(data) + 1 {
				h = hdr(0x00, 0x80).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.next()).put32(28, r.expStatSN)
				r.send(h, data)
			}
			binary.BigEndian.PutUint32(first[28:], r.expStatSN)
			r.send(first, nil)
			r.good()
			return h
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login(tt.keys...)
			h := tt.do(r)
			p, err := r.tryRecv(rawTimeout)
			for err == nil && (p.op() == 0x20 || tt.reason == 0x0a && p.op() == 0x3f && p.bhs[2] == 0x0a && !bytes.Equal(p.data, h[:])) {
				// NOP-Outs that there was memory for, and others than the last that there wasn't.
				p, err = r.tryRecv(rawTimeout)
			}
			if err != nil || p.op() != 0x3f || p.bhs[2] != tt.reason || !bytes.Equal(p.data, h[:]) {
				t.Fatalf("got %.200v (%v), want Reject with reason %02x of %x", p, err, tt.reason, h[:])
			}
			if tt.reason == 0x06 {
				l.meter.Release()
				for range 64 {
					r.recv(0x21)
				}
			}
			r.alive()
		})
	}
}
