package iscsi_test

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// erl1 logs in with ErrorRecoveryLevel 1 and small PDUs.
func erl1(t *testing.T, l *lab, more ...string) *raw {
	t.Helper()
	r := dial(t, l.addr)
	got := r.login(append([]string{"ErrorRecoveryLevel=1", "MaxRecvDataSegmentLength=512", "ImmediateData=Yes"}, more...)...)
	if got["ErrorRecoveryLevel"] != "1" {
		t.Fatalf("ErrorRecoveryLevel is %s", got["ErrorRecoveryLevel"])
	}
	return r
}

func (r *raw) snack(kind byte, itt, ttt, beg, length uint32) *header {
	h := hdr(0x10, 0x80|kind).put32(16, itt).put32(20, ttt).put32(28, r.expStatSN).put32(40, beg).put32(44, length)
	r.send(h, nil)
	return h
}

// TestStatusSNACK asks for responses again, by StatSN.
func TestStatusSNACK(t *testing.T) {
	l := newLab(t, nil)
	r := erl1(t, l, "HeaderDigest=CRC32C", "DataDigest=CRC32C")
	from := r.expStatSN
	r.expStatSN = from
	// Three answers that aren't acknowledged: GOOD, sense, data with status.
	ack := func(h *header) *header { return h.put32(28, from) }
	r.send(ack(r.command(0x80, 0, 0)), nil)
	first := r.recv(0x21)
	r.send(ack(r.command(0x80, 0, 0xff)), nil)
	second := r.recv(0x21)
	r.send(ack(r.command(0xc0, 1024, read10(0, 2)...)), nil)
	r.recv(0x25)
	third := r.recv(0x25)
	after := r.expStatSN
	again := func(want ...packet) {
		t.Helper()
		for _, w := range want {
			r.expStatSN = w.u32(24)
			p := r.recv(w.op())
			// ExpCmdSN and MaxCmdSN are those of now.
			copy(p.bhs[28:36], w.bhs[28:36])
			if !bytes.Equal(p.bhs, w.bhs) || !bytes.Equal(p.data, w.data) {
				t.Errorf("got again %v, want %v", p, w)
			}
		}
	}
	r.expStatSN = from
	r.snack(1, 0xffffffff, 0xffffffff, from+1, 1)
	again(second)
	r.expStatSN = from
	r.snack(1, 0xffffffff, 0xffffffff, from, 0)
	again(first, second, third)
	// What is acknowledged is gone.
	r.expStatSN = from + 2
	r.snack(1, 0xffffffff, 0xffffffff, from+2, 0)
	again(third)
	r.expStatSN = after
	h := r.snack(1, 0xffffffff, 0xffffffff, from, 2)
	if p := r.recv(0x3f); p.bhs[2] != 3 || !bytes.Equal(p.data, h[:]) {
		t.Errorf("got %v, want Reject with reason 3", p)
	}
	r.alive()
}

// TestDataSNACK asks for Data-In again, by DataSN.
func TestDataSNACK(t *testing.T) {
	l := newLab(t, nil)
	r := erl1(t, l)
	data := random(4096, 5)
	r.write(0, data, map[string]string{"ImmediateData": "Yes"}, 8192)
	from := r.expStatSN
	r.send(r.command(0xc0, 4096, read10(0, 8)...), nil)
	itt := 0x1000 + r.itt
	var all []packet
	for range 8 {
		all = append(all, r.recv(0x25))
	}
	after := r.expStatSN
	for _, run := range [][3]uint32{{2, 1, 3}, {0, 0, 8}, {6, 2, 8}, {7, 0, 8}} {
		r.expStatSN = from
		r.snack(0, itt, 0xffffffff, run[0], run[1])
		end := run[2]
		for sn := run[0]; sn < end; sn++ {
			p := r.recv(0x25)
			if !bytes.Equal(p.bhs, all[sn].bhs) || !bytes.Equal(p.data, all[sn].data) {
				t.Errorf("run %v: got %v, want %v", run, p, all[sn])
			}
		}
		r.silence()
	}
	// In other PDUs, since the initiator takes larger ones now, with a tag.
	r.expStatSN = from
	r.send(hdr(0x44, 0x80).put32(16, 9).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, from), text("MaxRecvDataSegmentLength=3072"))
	r.expStatSN = after
	r.recv(0x24)
	later := r.expStatSN
	r.expStatSN = from
	r.snack(3, itt, 0xabcd, 0, 0)
	a, b := r.recv(0x25), r.recv(0x25)
	if got := slices.Concat(a.data, b.data); len(a.data) != 3072 || !bytes.Equal(got, data) || a.u32(36) != 0 || b.u32(36) != 1 || b.bhs[1] != 0x80 {
		t.Errorf("resegmented: %v and %v", a, b)
	}
	if p := r.recv(0x21); p.u32(24) != from || p.u32(20) != 0xabcd || p.u32(36) != 2 || p.bhs[3] != 0 {
		t.Errorf("its status: %v", p)
	}
	r.expStatSN = later
	// Nothing of the kind.
	for _, h := range []*header{r.snack(0, 0x9999, 0xffffffff, 0, 0), r.snack(0, itt, 0xffffffff, 8, 1), r.snack(3, 0x9999, 1, 0, 0)} {
		if p := r.recv(0x3f); p.bhs[2] != 3 || !bytes.Equal(p.data, h[:]) {
			t.Errorf("got %v, want Reject with reason 3", p)
		}
	}
	r.snack(2, itt, 1, 0, 8)
	if p := r.recv(0x3f); p.bhs[2] != 8 {
		t.Errorf("DataACK: got %v, want Reject with reason 8", p)
	}
	r.alive()
}

// TestDataACK acknowledges data in the middle of a command, as it is asked to.
func TestDataACK(t *testing.T) {
	l := newLab(t, nil)
	r := erl1(t, l, "MaxBurstLength=1024", "FirstBurstLength=512", "InitialR2T=Yes")
	from := r.expStatSN
	r.send(r.command(0xc0, 8*512, read10(0, 8)...), nil)
	itt := 0x1000 + r.itt
	var all []packet
	ttt := map[uint32]bool{}
	for i := range 8 {
		p := r.recv(0x25)
		all = append(all, p)
		// At the end of each burst but the last.
		if ask := i%2 == 1 && i < 7; ask != (p.bhs[1]&0x40 != 0) || ask == (p.u32(20) == 0xffffffff) {
			t.Fatalf("Data-In %d: %v", i, p)
		} else if ask {
			ttt[p.u32(20)] = true
		}
	}
	if len(ttt) != 3 {
		t.Errorf("the tags are %v, want three", ttt)
	}
	refused := func(name string, reason byte, h *header) {
		t.Helper()
		if p := r.recv(0x3f); p.bhs[2] != reason || !bytes.Equal(p.data, h[:]) {
			t.Errorf("%s: got %v, want Reject with reason %d", name, p, reason)
		}
	}
	// These would acknowledge the response too, were they to say r.expStatSN.
	snack := func(kind byte, ttt, beg, length uint32) *header {
		h := hdr(0x10, 0x80|kind).put32(16, itt).put32(20, ttt).put32(28, from).put32(40, beg).put32(44, length)
		r.send(h, nil)
		return h
	}
	refused("another tag", 8, snack(2, 0x7777, 4, 0))
	refused("a run", 8, snack(2, all[3].u32(20), 4, 1))
	refused("less than was asked for", 8, snack(2, all[3].u32(20), 3, 0))
	refused("more than was asked for", 8, snack(2, all[3].u32(20), 5, 0))
	snack(2, all[3].u32(20), 4, 0)
	r.silence()
	refused("data that is acknowledged", 3, snack(0, 0xffffffff, 0, 4))
	after := r.expStatSN
	r.expStatSN = from
	snack(0, 0xffffffff, 0, 0)
	for _, want := range all[4:] {
		if p := r.recv(0x25); !bytes.Equal(p.bhs[:24], want.bhs[:24]) || !bytes.Equal(p.bhs[36:], want.bhs[36:]) || !bytes.Equal(p.data, want.data) {
			t.Errorf("got again %v, want %v", p, want)
		}
	}
	r.expStatSN = from
	snack(3, 0xabcd, 0, 0)
	for i := range uint32(4) {
		if p := r.recv(0x25); p.u32(36) != 4+i || p.u32(40) != (4+i)*512 {
			t.Errorf("resegmented: %v", p)
		}
	}
	if p := r.recv(0x21); p.u32(24) != from || p.u32(36) != 8 {
		t.Errorf("its status: %v", p)
	}
	r.expStatSN = after
	r.alive()
}

// TestDataACKFrees gives up the memory of what is acknowledged.
func TestDataACKFrees(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("ErrorRecoveryLevel=1", "MaxRecvDataSegmentLength=65536", "MaxBurstLength=65536")
	from := r.expStatSN
	r.send(r.command(0xc0, 4<<20, read10(0, 8192)...), nil)
	var asked packet
	for {
		p := r.recv(0x25)
		if p.bhs[1]&0x40 != 0 {
			asked = p
		}
		if p.bhs[1]&1 != 0 {
			break
		}
	}
	before := l.srv.Status().BufferBytes
	r.send(hdr(0x10, 0x82).put32(16, 0x1000+r.itt).put32(20, asked.u32(20)).put32(28, from).put32(40, asked.u32(36)+1), nil)
	h := hdr(0x40, 0x80).put32(16, 0x77).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, from)
	r.send(h, nil)
	r.recv(0x20)
	// The buffer may be the one that the next answers go to; it isn't after the next read.
	r.send(r.command(0xc0, 512, read10(0, 1)...).put32(28, from), nil)
	r.recv(0x25)
	r.send(h, nil)
	r.recv(0x20)
	if n := l.srv.Status().BufferBytes; before < 4<<20 || n > before-4<<20 {
		t.Errorf("%d bytes of buffers, %d before", n, before)
	}
}

// TestOneR2T gets one R2T at a time if sequences come in order and may have to be
// recovered (RFC 7143 13.19), and is told so.
func TestOneR2T(t *testing.T) {
	l := newLab(t, nil)
	for _, tt := range []struct {
		keys []string
		want string
	}{
		{[]string{"MaxOutstandingR2T=4", "ErrorRecoveryLevel=1", "DataSequenceInOrder=Yes"}, "1"},
		{[]string{"ErrorRecoveryLevel=2", "MaxOutstandingR2T=64"}, "1"},
		{[]string{"MaxOutstandingR2T=64", "ErrorRecoveryLevel=1", "DataSequenceInOrder=No"}, "64"},
		{[]string{"MaxOutstandingR2T=64", "ErrorRecoveryLevel=0"}, "64"},
	} {
		if got := dial(t, l.addr).login(tt.keys...)["MaxOutstandingR2T"]; got != tt.want {
			t.Errorf("%q: MaxOutstandingR2T=%s, want %s", tt.keys, got, tt.want)
		}
	}
	r := erl1(t, l, "MaxOutstandingR2T=4", "MaxBurstLength=1024", "FirstBurstLength=512", "DataSequenceInOrder=Yes")
	data := random(4096, 6)
	r.send(r.command(0xa0, 4096, write10(0, 8)...), data[:512])
	q := r.recv(0x31)
	r.silence()
	for end := uint32(0); end < 4096; {
		off, n := q.u32(40), q.u32(44)
		r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, off), data[off:off+n])
		if end = off + n; end < 4096 {
			q = r.recv(0x31)
		}
	}
	r.good()
}

// TestR2TSNACK asks for R2Ts again.
func TestR2TSNACK(t *testing.T) {
	l := newLab(t, nil)
	r := erl1(t, l, "MaxOutstandingR2T=4", "MaxBurstLength=1024", "FirstBurstLength=512", "DataSequenceInOrder=No")
	data := random(4096, 6)
	r.send(r.command(0xa0, 4096, write10(0, 8)...), data[:512])
	var all []packet
	for range 4 {
		all = append(all, r.recv(0x31))
	}
	itt := all[0].u32(16)
	r.snack(0, itt, 0xffffffff, 1, 2)
	for _, want := range all[1:3] {
		if p := r.recv(0x31); !bytes.Equal(p.bhs, want.bhs) {
			t.Errorf("got again %v, want %v", p, want)
		}
	}
	for _, q := range all {
		off, n := q.u32(40), q.u32(44)
		r.send(r.dataOut(true, itt, q.u32(20), 0, off), data[off:off+n])
	}
	r.good()
	r.read(0, 1)
}

// TestSequenceRecovery damages one of several sequences that are under way: that
// one is asked for again, the others go on.
func TestSequenceRecovery(t *testing.T) {
	l := newLab(t, nil)
	r := erl1(t, l, "MaxOutstandingR2T=64", "MaxBurstLength=1024", "FirstBurstLength=512", "DataSequenceInOrder=No")
	const n = 64
	data := random(n*1024, 8)
	r.send(r.command(0xa0, n*1024, write10(0, n*2)...), nil)
	var all []packet
	for range n {
		all = append(all, r.recv(0x31))
	}
	itt := all[0].u32(16)
	answer := func(q packet) {
		off := q.u32(40)
		r.send(r.dataOut(true, itt, q.u32(20), 0, off), data[off:][:q.u32(44)])
	}
	answer(all[7])
	r.send(r.dataOut(true, itt, all[40].u32(20), 1, all[40].u32(40)+512), data[:512]) // the one before it is lost
	q := r.recv(0x31)
	if q.u32(40) != all[40].u32(40) || q.u32(44) != 1024 || q.u32(36) != n || q.u32(20) == all[40].u32(20) {
		t.Fatalf("the recovery R2T is %v, for %v", q, all[40])
	}
	for i, q := range all {
		if i != 7 && i != 40 {
			answer(q)
		}
	}
	r.silence()
	answer(q)
	r.good()
	if !bytes.Equal(r.read(0, n*2), data) {
		t.Error("it doesn't read back")
	}
}

// TestDataOutRecovery damages and loses data; it is asked for again.
func TestDataOutRecovery(t *testing.T) {
	l := newLab(t, nil)
	data := random(8192, 7)
	// harm is done in the middle of a sequence of four PDUs.
	for name, harm := range map[string]func(r *raw, h *header, d []byte, q packet){
		"damaged data": func(r *raw, h *header, d []byte, _ packet) {
			h[6] = 8
			b := append(slices.Clone(h[:]), d...)
			r.nc.Write(append(b, 1, 2, 3, 4))
			if p := r.recv(0x3f); p.bhs[2] != 2 {
				r.t.Fatalf("got %v, want Reject with reason 2", p)
			}
		},
		"lost": func(*raw, *header, []byte, packet) {},
	} {
		for _, solicited := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				r := dial(t, l.addr)
				keys := []string{"ErrorRecoveryLevel=1", "DataDigest=CRC32C", "ImmediateData=No", "InitialR2T=Yes"}
				if !solicited {
					keys[3] = "InitialR2T=No"
				}
				r.login(keys...)
				flags, ttt := byte(0xa0), uint32(0xffffffff)
				if !solicited {
					flags = 0x20
				}
				r.send(r.command(flags, 8192, write10(64, 16)...), nil)
				itt := 0x1000 + r.itt
				var q packet
				if solicited {
					q = r.recv(0x31)
					ttt = q.u32(20)
				}
				for sn := range uint32(4) {
					h := r.dataOut(sn == 3, itt, ttt, sn, sn*2048)
					d := data[sn*2048:][:2048]
					if sn == 1 {
						harm(r, h, d, q)
						continue
					}
					r.send(h, d)
				}
				again := r.recv(0x31)
				off, n := again.u32(40), again.u32(44)
				if off != 2048 || n != 6144 || again.u32(20) == ttt {
					t.Fatalf("the recovery R2T is %v", again)
				}
				if solicited && again.u32(36) != q.u32(36)+1 {
					t.Errorf("its R2TSN is %d after %d", again.u32(36), q.u32(36))
				}
				r.send(r.dataOut(true, itt, again.u32(20), 0, off), data[off:])
				r.good()
				if got := r.read(64, 16); !bytes.Equal(got, data) {
					t.Error("it doesn't read back")
				}
			})
		}
	}
	t.Run("the last PDU is lost", func(t *testing.T) {
		r := dial(t, l.addr)
		r.login("ErrorRecoveryLevel=1", "ImmediateData=No")
		r.send(r.command(0xa0, 8192, write10(0, 16)...), nil)
		q := r.recv(0x31)
		r.send(r.dataOut(false, q.u32(16), q.u32(20), 0, 0), data[:4096])
		// Nothing follows; after a while it is asked for.
		q = r.recv(0x31)
		if q.u32(40) != 4096 || q.u32(44) != 4096 {
			t.Fatalf("the recovery R2T is %v", q)
		}
		r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 4096), data[4096:])
		r.good()
	})
	t.Run("a header is damaged", func(t *testing.T) {
		r := dial(t, l.addr)
		r.login("ErrorRecoveryLevel=1", "HeaderDigest=CRC32C", "ImmediateData=No")
		r.send(r.command(0xa0, 8192, write10(0, 16)...), nil)
		q := r.recv(0x31)
		h := r.dataOut(false, q.u32(16), q.u32(20), 0, 0)
		h[6] = 0x10
		r.nc.Write(slices.Concat(h[:], []byte{1, 2, 3, 4}, data[:4096]))
		r.send(r.dataOut(true, q.u32(16), q.u32(20), 1, 4096), data[4096:])
		q = r.recv(0x31)
		if q.u32(40) != 0 || q.u32(44) != 8192 {
			t.Fatalf("the recovery R2T is %v", q)
		}
		r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 0), data)
		r.good()
		// A command that is lost can be sent again with its number.
		c := r.command(0x80, 0, 0)
		r.nc.Write(append(c[:], 1, 2, 3, 4))
		r.send(c, nil)
		r.good()
		// Two in a row, and there is no telling where a PDU begins.
		r.nc.Write(append(c[:], 1, 2, 3, 4))
		r.nc.Write(append(c[:], 1, 2, 3, 4))
		r.closed()
	})
	t.Run("damaged each time", func(t *testing.T) {
		r := dial(t, l.addr)
		r.login("ErrorRecoveryLevel=1", "ImmediateData=No")
		r.send(r.command(0xa0, 512, write10(0, 1)...), nil)
		for range 9 {
			q := r.recv(0x31)
			r.send(r.dataOut(true, q.u32(16), q.u32(20), 5, 0), data[:512])
		}
		if key, code := r.recv(0x21).sense(); key != 0xb || code != 0x4705 {
			t.Errorf("sense %x/%04x, want b/4705", key, code)
		}
		r.alive()
	})
}

// TestKeptIsBounded reads much without acknowledging any of it.
func TestKeptIsBounded(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("ErrorRecoveryLevel=1", "MaxRecvDataSegmentLength=262144")
	from := r.expStatSN
	for range 40 {
		h := r.command(0xc0, 1<<20, read10(0, 2048)...)
		r.send(h.put32(28, from), nil)
		for r.recv(0x25).bhs[1]&1 == 0 {
		}
	}
	if n := l.srv.Status().BufferBytes; n > 24<<20 {
		t.Errorf("%d MiB are kept for one connection", n>>20)
	}
	r.alive()
	logout(r)
	r.nc.Close()
	l.rest(t)
	for range 1000 {
		if l.srv.Status().BufferBytes == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d bytes of buffers are left", l.srv.Status().BufferBytes)
}
