package iscsi_test

import (
	"slices"
	"testing"
	"time"

	"lunlab/lun/fault"
	"lunlab/target"
)

// faulty is the number of a LUN that fails on purpose.
const faulty = 9

// addFaulty adds it, in front of the unit of LUN behind.
func (l *lab) addFaulty(t *testing.T, behind int) *fault.Unit {
	t.Helper()
	u := fault.New(l.tgt.Device.Units()[behind].Unit())
	if _, err := l.tgt.Device.Add(faulty, u, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	return u
}

func addRule(t *testing.T, u *fault.Unit, text string) uint64 {
	t.Helper()
	r, err := fault.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	id, err := u.Add(r)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// held waits until so many commands are held by a unit's rules.
func held(t *testing.T, u *fault.Unit, want int64) {
	t.Helper()
	for deadline := time.Now().Add(rawTimeout); ; time.Sleep(time.Millisecond) {
		n := int64(0)
		for _, r := range u.Rules() {
			n += r.Held
		}
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d commands are held, want %d", n, want)
		}
	}
}

func onFaulty(h *header) *header { return h.put(8, 0, faulty) }

// abort aborts the task with a tag and returns the function's own.
func (r *raw) abort(itt uint32) uint32 {
	tag := r.tag()
	r.send(onFaulty(hdr(0x42, 0x81)).put32(16, tag).put32(20, itt).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	return tag
}

// TestNeverAnswered ends commands that a rule keeps from being answered, by each
// function and by the end of the session.
func TestNeverAnswered(t *testing.T) {
	l := newLab(t, nil)
	u := l.addFaulty(t, 1)
	addRule(t, u, "cmd=write10 never")
	data := random(4096, 1)
	for _, end := range []string{"ABORT TASK", "LOGICAL UNIT RESET", "disconnect"} {
		r := dial(t, l.addr)
		r.login("InitialR2T=No")
		r.send(onFaulty(r.command(0x80, 0, 0)), nil) // its unit attention
		r.recv(0x21)
		r.send(onFaulty(r.command(0xa0, 4096, write10(0, 8)...)), data)
		itt := 0x1000 + r.itt
		held(t, u, 1)
		r.alive()
		switch end {
		case "ABORT TASK":
			tag := r.abort(itt)
			if p := r.recv(0x22); p.bhs[2] != 0 || p.u32(16) != tag {
				t.Errorf("%s: %v", end, p)
			}
		case "LOGICAL UNIT RESET":
			r.send(onFaulty(hdr(0x42, 0x85)).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
			if p := r.recv(0x22); p.bhs[2] != 0 {
				t.Errorf("%s: %v", end, p)
			}
		}
		r.nc.Close()
		l.rest(t)
		held(t, u, 0)
	}
	for deadline := time.Now().Add(rawTimeout); l.srv.Status().BufferBytes > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of buffers are left", l.srv.Status().BufferBytes)
		}
	}
}

// TestAnswerAfterAbort gets the answer of an aborted command, and then that of the
// function.
func TestAnswerAfterAbort(t *testing.T) {
	l := newLab(t, nil)
	u := l.addFaulty(t, 1)
	addRule(t, u, "cmd=read10 answer-after-abort")
	r := dial(t, l.addr)
	r.login()
	r.send(onFaulty(r.command(0x80, 0, 0)), nil)
	r.recv(0x21)
	for range 20 { // the order isn't chance
		r.send(onFaulty(r.command(0xc0, 512, read10(0, 1)...)), nil)
		itt := 0x1000 + r.itt
		held(t, u, 1)
		tag := r.abort(itt)
		if p := r.recv(0x25); p.u32(16) != itt || p.bhs[1]&1 == 0 || len(p.data) != 512 {
			t.Fatalf("the answer: %v", p)
		}
		if p := r.recv(0x22); p.u32(16) != tag || p.bhs[2] != 0 {
			t.Fatalf("the function's answer: %v", p)
		}
	}
	r.alive()
}

// TestRuleComes adds a rule that commands wait for while one is on its way that was
// to be executed at once, since nothing could wait then. It isn't held up; the next
// one is.
func TestRuleComes(t *testing.T) {
	l := newLab(t, nil)
	u := l.addFaulty(t, 0)
	r := dial(t, l.addr)
	r.login("InitialR2T=Yes", "ImmediateData=No")
	r.send(onFaulty(r.command(0x80, 0, 0)), nil)
	r.recv(0x21)
	data := random(4096, 7)
	r.send(onFaulty(r.command(0xa0, 4096, write10(8, 8)...)), nil)
	q := r.recv(0x31)
	id := addRule(t, u, "stall")
	r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 0), data)
	r.good()
	r.send(onFaulty(r.command(0xc0, 4096, read10(8, 8)...)), nil)
	held(t, u, 1)
	r.alive()
	if _, err := u.Remove(id); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for len(got) < 4096 {
		got = append(got, r.recv(0x25).data...)
	}
	if !slices.Equal(got, data) {
		t.Error("what was written isn't there")
	}
}

// TestDropped breaks connections and sessions of two connections.
func TestDropped(t *testing.T) {
	for _, link := range []string{"connection", "session"} {
		l := newLab(t, multi)
		u := l.addFaulty(t, 1)
		addRule(t, u, "cmd=write10 drop="+link)
		r := dial(t, l.addr)
		r.login("MaxConnections=2", "ImmediateData=Yes", "InitialR2T=No")
		r.send(onFaulty(r.command(0x80, 0, 0)), nil)
		r.recv(0x21)
		x := r.another(l, 1)
		data := random(512, 3)
		x.cmdSN = r.cmdSN
		x.send(onFaulty(x.command(0xa0, 512, write10(0, 1)...)), data)
		x.closed()
		if link == "session" {
			r.closed()
		} else {
			if p := r.recv(0x32); p.bhs[36] != 2 { // a connection was dropped
				t.Errorf("%v", p)
			}
			r.cmdSN = x.cmdSN
			r.alive()
			r.nc.Close()
		}
		// The write was executed all the same.
		y := dial(t, l.addr)
		y.isid[5]++
		y.login()
		y.send(onFaulty(y.command(0x80, 0, 0)), nil)
		y.recv(0x21)
		y.send(onFaulty(y.command(0xc0, 512, read10(0, 1)...)), nil)
		if p := y.recv(0x25); !slices.Equal(p.data, data) {
			t.Errorf("%s: what was written isn't there", link)
		}
		if f := u.Rules()[0].Fired; f != 1 {
			t.Errorf("%s: fired %d times", link, f)
		}
		y.nc.Close()
		for deadline := time.Now().Add(rawTimeout); len(l.srv.Status().Sessions) > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: sessions stay: %+v", link, l.srv.Status().Sessions)
			}
		}
	}
}
