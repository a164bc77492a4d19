package iscsi_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi"
)

// lose begins three tasks on a connection of its own and loses it: a read that is
// answered and not acknowledged, a write that waits for its second half, and a
// command that executes.
func (r *raw) lose(t *testing.T, l *lab, data []byte) (read, write, running uint32) {
	t.Helper()
	r.write(0, data, map[string]string{"ImmediateData": "Yes", "FirstBurstLength": "512"}, 8192)
	from := r.expStatSN
	r.send(r.command(0xc0, 4096, read10(0, 8)...), nil)
	read = 0x1000 + r.itt
	for range 8 {
		r.recv(0x25)
	}
	r.expStatSN = from
	r.send(r.command(0xa0, 4096, write10(64, 8)...), data[:512])
	q, err := r.tryRecv(rawTimeout)
	if err != nil || q.op() != 0x31 {
		t.Fatalf("got %v (%v), want an R2T", q, err)
	}
	write = q.u32(16)
	r.send(r.dataOut(false, write, q.u32(20), 0, 512), data[512:2048])
	l.meter.Hold()
	r.send(on1(r.command(0x80, 0, 0)), nil)
	running = 0x1000 + r.itt
	l.inFlight(t, 1)
	r.nc.Close()
	return read, write, running
}

// reassign has the three tasks go on by this connection.
func (r *raw) reassign(t *testing.T, l *lab, data []byte, read, write, running uint32) {
	t.Helper()
	ask := func(tag, expDataSN uint32) {
		t.Helper()
		r.send(hdr(0x42, 0x88).put32(16, r.tag()).put32(20, tag).put32(24, r.cmdSN).put32(28, r.expStatSN).put32(36, expDataSN), nil)
		r.functionResponse(0)
	}
	// The read from its fourth PDU on.
	ask(read, 3)
	var got []byte
	for sn := uint32(3); sn < 8; sn++ {
		p := r.recv(0x25)
		if p.u32(16) != read || p.u32(36) != sn || p.u32(40) != sn*512 {
			t.Fatalf("Data-In %v, want number %d", p, sn)
		}
		got = append(got, p.data...)
	}
	if !bytes.Equal(got, data[3*512:]) {
		t.Error("the read's data is not what was written")
	}
	if p := r.recv(0x21); p.u32(16) != read || p.bhs[3] != 0 || p.u32(36) != 8 {
		t.Errorf("the read's status is %v", p)
	}
	// The write from where its data ended.
	ask(write, 0)
	q := r.recv(0x31)
	off := q.u32(40)
	if q.u32(16) != write || off != 2048 || q.u32(44) != 2048 {
		t.Fatalf("the write's R2T is %v", q)
	}
	r.send(r.dataOut(true, write, q.u32(20), 0, off), data[off:])
	r.good()
	if got := r.read(64, 8); !bytes.Equal(got, data) {
		t.Error("the write doesn't read back")
	}
	// The one that executes, when it has ended.
	ask(running, 0)
	r.silence()
	l.meter.Release()
	if p := r.recv(0x21); p.u32(16) != running || p.bhs[3] != 0 {
		t.Errorf("the running command's status is %v", p)
	}
	// All three are over.
	for _, tag := range []uint32{read, write, running} {
		r.send(hdr(0x42, 0x88).put32(16, r.tag()).put32(20, tag).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
		r.functionResponse(1)
	}
	r.alive()
}

var erl2 = []string{"ErrorRecoveryLevel=2", "MaxConnections=4", "MaxRecvDataSegmentLength=512", "ImmediateData=Yes", "FirstBurstLength=512"}

// TestReassign recovers the tasks of a lost connection by another that is there.
func TestReassign(t *testing.T) {
	l := newLab(t, multi)
	data := random(4096, 8)
	r := dial(t, l.addr)
	if got := r.login(erl2...); got["ErrorRecoveryLevel"] != "2" {
		t.Fatalf("ErrorRecoveryLevel is %s", got["ErrorRecoveryLevel"])
	}
	x := dial(t, l.addr)
	x.isid, x.tsih, x.cid, x.cmdSN, x.itt = r.isid, r.tsih, 1, r.cmdSN, 1<<16
	if p := x.tryLogin(1, 3, append(names(), "MaxRecvDataSegmentLength=512")...); p.u16(36) != 0 {
		t.Fatal(p)
	}
	read, write, running := x.lose(t, l, data)
	if p := r.recv(0x32); p.bhs[36] != 2 || p.u16(38) != 1 {
		t.Fatalf("got %v, want the event that connection 1 is gone", p)
	}
	r.cmdSN = x.cmdSN
	logout := func(reason byte, cid uint16, want byte) {
		t.Helper()
		r.send(hdr(0x46, 0x80|reason).put32(16, r.tag()).put16(20, cid).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
		if p := r.recv(0x26); p.bhs[2] != want {
			t.Fatalf("Logout Response %v, want %d", p, want)
		}
	}
	logout(2, 9, 1)
	logout(2, 1, 0)
	r.reassign(t, l, data, read, write, running)

	// A task of a connection that is there stays where it is.
	l.meter.Hold()
	r.send(on1(r.command(0x80, 0, 0)), nil)
	l.inFlight(t, 1)
	r.function(8, 1, 0x1000+r.itt, 0)
	r.functionResponse(3)
	l.meter.Release()
	r.good()
	// When the lost one is logged out for good, nothing of it is left.
	logout(1, 1, 0)
	logout(1, 1, 1)
	r.alive()
}

// TestRecoverAlive takes a connection that is alive out of its session, for
// recovery.
func TestRecoverAlive(t *testing.T) {
	l := newLab(t, multi)
	r := dial(t, l.addr)
	r.login(erl2...)
	x := r.another(l, 1)
	x.send(x.command(0xa0, 512, write10(5, 1)...), nil)
	q := x.recv(0x31)
	r.cmdSN = x.cmdSN
	r.send(hdr(0x46, 0x82).put32(16, r.tag()).put16(20, 1).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	if p := r.recv(0x26); p.bhs[2] != 0 {
		t.Fatalf("Logout Response %v", p)
	}
	x.closed()
	r.function(8, 0, q.u32(16), 0)
	r.functionResponse(0)
	q = r.recv(0x31)
	r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 0), random(512, 9))
	r.good()
	if got := r.read(5, 1); !bytes.Equal(got, random(512, 9)) {
		t.Error("it doesn't read back")
	}
}

// TestReinstateConnection recovers the tasks of a session's only connection by a
// new one in its place.
func TestReinstateConnection(t *testing.T) {
	l := newLab(t, multi)
	data := random(4096, 8)
	r := dial(t, l.addr)
	r.login(erl2...)
	read, write, running := r.lose(t, l, data)
	again := dial(t, l.addr)
	again.isid, again.tsih, again.cid, again.cmdSN, again.itt = r.isid, r.tsih, r.cid, r.cmdSN, 1<<16
	if p := again.tryLogin(1, 3, append(names(), "MaxRecvDataSegmentLength=512")...); p.u16(36) != 0 {
		t.Fatal(p)
	}
	again.reassign(t, l, data, read, write, running)
	logout(again)
}

// TestLostIsBounded loses connections over and over, each with a task that waits for
// data, and recovers none.
func TestLostIsBounded(t *testing.T) {
	l := newLab(t, multi)
	r := dial(t, l.addr)
	r.login(erl2...)
	left := func(want int) {
		t.Helper()
		n := 0
		for deadline := time.Now().Add(rawTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			n = 0
			for _, u := range l.tgt.Device.Units() {
				n += u.InFlight()
			}
			if n == want {
				return
			}
		}
		t.Fatalf("%d tasks wait, want %d", n, want)
	}
	tags := uint32(0)
	lose := func(cid uint16) {
		t.Helper()
		x := r.another(l, cid)
		tags += 1 << 16
		x.itt = tags
		x.send(x.command(0xa0, 512, write10(0, 1)...).put(8, 0, unlimited), nil)
		x.recv(0x31)
		x.nc.Close()
		r.recv(0x32)
		r.cmdSN = x.cmdSN
	}
	for range 12 {
		lose(1)
	}
	left(1)
	for cid := range uint16(12) {
		lose(cid + 2)
	}
	left(4)
	r.alive()
	logout(r)
}

// TestRecoveryExpires doesn't recover a lost connection in time.
func TestRecoveryExpires(t *testing.T) {
	t.Parallel()
	l := newLab(t, multi)
	r := dial(t, l.addr)
	r.login(append(erl2, "DefaultTime2Wait=0", "DefaultTime2Retain=5")...)
	r.lose(t, l, random(4096, 8))
	if n := len(l.srv.Status().Sessions); n != 1 {
		t.Errorf("%d sessions at first", n)
	}
	for deadline := time.Now().Add(rawTimeout); len(l.srv.Status().Sessions) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the session stays for good")
		}
	}
	l.rest(t)
	x := dial(t, l.addr)
	x.isid, x.tsih = r.isid, r.tsih
	if p := x.tryLogin(1, 3, names()...); p.u16(36) != 0x020a {
		t.Errorf("got %v, want status 020a", p)
	}
	for deadline := time.Now().Add(rawTimeout); l.srv.Status().BufferBytes > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of buffers are left", l.srv.Status().BufferBytes)
		}
	}
}

// slow is a unit whose commands take until it is closed, aborted or not.
type slow struct {
	lun.Unit
	until chan struct{}
}

func (slow) Blocking() bool { return true }

func (u slow) Execute(c *lun.Command) {
	<-u.until
	u.Unit.Execute(c)
}

// TestExpireSlowly gives up a lost connection whose command doesn't end. Another
// that takes too long to log in is dropped all the same.
func TestExpireSlowly(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *iscsi.Options, tgt *iscsi.Target) {
		multi(o, tgt)
		o.LoginTimeout = 2 * time.Second
	})
	until := make(chan struct{})
	end := sync.OnceFunc(func() { close(until) })
	t.Cleanup(end)
	const number = 6
	if _, err := l.tgt.Device.Add(number, slow{l.meter, until}, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	r := dial(t, l.addr)
	r.login(append(erl2, "DefaultTime2Wait=0", "DefaultTime2Retain=0")...)
	r.send(r.command(0x80, 0, 0).put(8, 0, number), nil)
	r.alive()
	r.nc.Close()
	time.Sleep(time.Second) // the watch comes by
	dial(t, l.addr).closed()
	end()
	l.rest(t)
}
