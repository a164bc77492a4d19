package iscsi_test

import (
	"context"
	"testing"
	"time"

	"lunlab/target"
	"lunlab/target/iscsi"
)

func addTargets(o *iscsi.Options, t *iscsi.Target) {
	for i := range 40 {
		c := *t
		c.Name = t.Name + ":" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		o.Targets = append(o.Targets, &c)
	}
}

// function sends a task management function, immediate.
func (r *raw) function(f byte, lun byte, rtt, refCmdSN uint32) {
	r.send(hdr(0x42, 0x80|f).put(8, 0, lun).put32(16, r.tag()).put32(20, rtt).put32(24, r.cmdSN).put32(28, r.expStatSN).put32(32, refCmdSN), nil)
}

func (r *raw) functionResponse(want byte) {
	r.t.Helper()
	if p := r.recv(0x22); p.bhs[2] != want {
		r.t.Fatalf("response %d, want %d", p.bhs[2], want)
	}
}

// on1 makes a command one for LUN 1, which can be held.
func on1(h *header) *header { return h.put(8, 0, 1) }

// inFlight waits until LUN 1 has n commands.
func (l *lab) inFlight(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rawTimeout)
	defer cancel()
	got, err := target.Settle(ctx, l.meter.InFlight, n, 10*time.Millisecond, rawTimeout)
	if err != nil || got != n {
		t.Fatalf("%d commands in flight (%v), want %d", got, err, n)
	}
}

func TestTaskManagement(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("ImmediateData=No")
	other := dial(t, l.addr)
	other.isid[5]++
	other.login()

	t.Run("no such task, no such LUN", func(t *testing.T) {
		r.t = t
		r.function(1, 0, 0x9999, r.cmdSN-1)
		r.functionResponse(1)
		for _, f := range []byte{1, 2, 3, 4, 5} {
			r.function(f, 7, 0xffffffff, 0)
			r.functionResponse(2)
		}
		r.function(3, 0, 0xffffffff, 0) // CLEAR ACA, without one
		r.functionResponse(0)
		r.function(8, 0, 0x9999, 0) // TASK REASSIGN
		r.functionResponse(4)
		r.function(9, 0, 0x9999, 0) // QUERY TASK, at iSCSIProtocolLevel 1
		r.functionResponse(5)
		r.function(0x7f, 0, 0x9999, 0)
		r.functionResponse(5)
	})
	t.Run("ABORT TASK of one that waits for data", func(t *testing.T) {
		r.t = t
		r.send(r.command(0xa0, 512, write10(0, 1)...), nil)
		q := r.recv(0x31)
		r.function(1, 0, q.u32(16), r.cmdSN-1)
		r.functionResponse(0)
		// The data that was asked for may be under way; it is ignored.
		r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 0), random(512, 7))
		r.alive()
		r.silence()
		if b := r.read(0, 1); b[0] != 0 || b[511] != 0 {
			t.Error("the aborted write was done")
		}
	})
	t.Run("ABORT TASK of one that executes", func(t *testing.T) {
		r.t = t
		l.meter.Hold()
		r.send(on1(r.command(0x80, 0, 0)), nil)
		l.inFlight(t, 1)
		// Other commands aren't held up by it.
		r.read(0, 1)
		r.function(1, 1, 0x1000+r.itt-1, r.cmdSN-2)
		r.functionResponse(0)
		l.meter.Release()
		r.alive()
		r.silence()
	})
	t.Run("ABORT TASK SET leaves other nexuses alone", func(t *testing.T) {
		r.t, other.t = t, t
		l.meter.Hold()
		for range 3 {
			r.send(on1(r.command(0x80, 0, 0)), nil)
		}
		other.send(on1(other.command(0x80, 0, 0)), nil)
		l.inFlight(t, 4)
		r.function(2, 1, 0xffffffff, 0)
		r.functionResponse(0)
		l.meter.Release()
		other.good()
		r.alive()
		r.silence()
	})
	for f, name := range map[byte]string{4: "CLEAR TASK SET", 5: "LOGICAL UNIT RESET", 6: "TARGET WARM RESET"} {
		t.Run(name+" ends all nexuses' commands", func(t *testing.T) {
			r.t, other.t = t, t
			r.attend()
			other.attend()
			l.meter.Hold()
			r.send(on1(r.command(0x80, 0, 0)), nil)
			other.send(on1(other.command(0x80, 0, 0)), nil)
			l.inFlight(t, 2)
			r.function(f, 1, 0xffffffff, 0)
			r.functionResponse(0)
			l.meter.Release()
			r.alive()
			r.silence()
			// The other nexus is told (TAS, SPC-5 7.5.8).
			if p := other.recv(0x21); p.bhs[3] != 0x40 {
				t.Fatalf("got %v, want TASK ABORTED", p)
			}
			other.alive()
			other.silence()
			if f == 4 {
				return
			}
			other.send(on1(other.command(0x80, 0, 0)), nil)
			p := other.recv(0x21)
			if p.bhs[3] != 2 {
				t.Fatalf("got %v, want CHECK CONDITION", p)
			}
			if key, code := p.sense(); key != 6 || code>>8 != 0x29 {
				t.Errorf("sense %x/%04x, want a unit attention", key, code)
			}
		})
	}
	t.Run("TARGET COLD RESET ends the connections", func(t *testing.T) {
		r.t, other.t = t, t
		r.function(7, 0, 0xffffffff, 0)
		r.functionResponse(0)
		r.closed()
		other.closed()
	})
}

// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS names those that the session can ask for.
func TestReportFunctions(t *testing.T) {
	l := newLab(t, nil)
	for level, want := range map[string]uint16{"1": 0xf800, "2": 0xfc07} {
		r := dial(t, l.addr)
		r.isid[5] = level[0]
		r.login("iSCSIProtocolLevel=" + level)
		r.send(r.command(0xc0, 16, 0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0), nil)
		if d := r.recv(0x25).data; uint16(d[0])<<8|uint16(d[1]) != want {
			t.Errorf("at iSCSIProtocolLevel %s: %x, want %04x", level, d[:2], want)
		}
	}
}

func TestQueryTask(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	if got := r.login("iSCSIProtocolLevel=2"); got["iSCSIProtocolLevel"] != "2" {
		t.Fatalf("iSCSIProtocolLevel is %q", got["iSCSIProtocolLevel"])
	}
	r.function(10, 1, 0xffffffff, 0)
	r.functionResponse(0)
	l.meter.Hold()
	r.send(on1(r.command(0x80, 0, 0)), nil)
	l.inFlight(t, 1)
	task := 0x1000 + r.itt
	r.function(9, 1, task, r.cmdSN-1)
	r.functionResponse(7)
	r.function(9, 0, task, r.cmdSN-1)
	r.functionResponse(0)
	r.function(10, 1, 0xffffffff, 0)
	r.functionResponse(7)
	r.function(11, 1, 0xffffffff, 0) // I_T NEXUS RESET
	r.functionResponse(0)
	l.meter.Release()
	r.function(10, 1, 0xffffffff, 0)
	r.functionResponse(0)
	r.silence()
}

// TestRefCmdSN aborts commands that haven't come (RFC 7143 11.6.1).
func TestRefCmdSN(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	// The command with the next number is lost, the one after it is held.
	lost := r.command(0x80, 0, 0)
	lostSN, lostTag := r.cmdSN-1, 0x1000+r.itt
	r.send(r.command(0x80, 0, 0), nil)
	r.silence()
	r.function(1, 0, lostTag, lostSN)
	p, err := r.tryRecv(rawTimeout)
	if err != nil {
		t.Fatal(err)
	}
	// The held one's turn has come; the answers may come in either order.
	q, err := r.tryRecv(rawTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if p.op() == 0x22 {
		p, q = q, p
	}
	if p.op() != 0x21 || q.op() != 0x22 || q.bhs[2] != 0 {
		t.Fatalf("got %v and %v", p, q)
	}
	// If it comes after all, it is ignored.
	r.send(lost, nil)
	r.silence()

	// One that is held itself.
	r.next()
	r.send(r.command(0x80, 0, 0), nil)
	held, heldSN := 0x1000+r.itt, r.cmdSN-1
	r.function(1, 0, held, heldSN)
	r.functionResponse(0)
	r.cmdSN -= 2
	r.send(r.command(0x80, 0, 0), nil)
	r.good()
	r.next()
	r.silence()
	if r.expCmdSN != r.cmdSN {
		r.alive()
		if r.expCmdSN != r.cmdSN {
			t.Errorf("ExpCmdSN is %d, want %d", r.expCmdSN, r.cmdSN)
		}
	}
	// One beyond the window never existed.
	r.function(1, 0, 0x4444, r.cmdSN+1000)
	r.functionResponse(1)
}

func TestWindow(t *testing.T) {
	l := newLab(t, func(_ *iscsi.Options, t *iscsi.Target) { t.CanQueue = 4 })
	r := dial(t, l.addr)
	r.login()
	r.alive()
	if d := r.maxCmdSN - r.expCmdSN; d != 3 {
		t.Fatalf("the window is %d commands, want 4", d+1)
	}
	l.meter.Hold()
	for range 4 {
		r.send(on1(r.command(0x80, 0, 0)), nil)
	}
	l.inFlight(t, 4)
	r.alive()
	if d := int32(r.maxCmdSN - r.expCmdSN); d != -1 {
		t.Fatalf("MaxCmdSN is ExpCmdSN%+d with 4 in flight, want -1", d)
	}
	// One more is ignored (RFC 7143 4.2.2.1), an old one too.
	r.send(on1(r.command(0x80, 0, 0)), nil)
	r.cmdSN -= 5
	r.send(on1(r.command(0x80, 0, 0)), nil)
	r.cmdSN += 3
	r.silence()
	l.inFlight(t, 4)
	l.meter.Release()
	for range 4 {
		r.good()
	}
	if d := int32(r.maxCmdSN - r.expCmdSN); d != 3 {
		t.Errorf("MaxCmdSN is ExpCmdSN%+d at rest, want 3", d)
	}
	r.alive()
}

func TestCmdPerLUN(t *testing.T) {
	l := newLab(t, nil) // 8 per LUN
	r := dial(t, l.addr)
	r.login()
	l.meter.Hold()
	for range 8 {
		r.send(on1(r.command(0x80, 0, 0)), nil)
	}
	l.inFlight(t, 8)
	r.send(on1(r.command(0x80, 0, 0)), nil)
	if p := r.recv(0x21); p.bhs[3] != 0x28 {
		t.Fatalf("got %v, want TASK SET FULL", p)
	}
	// The other LUN has its own count.
	r.read(0, 1)
	u := l.tgt.Device.Units()[1]
	if u.InFlight() != 8 || u.MostInFlight() != 8 || u.TaskSetFull() != 1 {
		t.Errorf("in flight %d, most %d, full %d; want 8, 8, 1", u.InFlight(), u.MostInFlight(), u.TaskSetFull())
	}
	l.meter.Release()
	for range 8 {
		r.good()
	}
	if u.InFlight() != 0 {
		t.Errorf("%d in flight at rest", u.InFlight())
	}
}

// TestTooManyImmediate sends more immediate commands than are taken at once
// (RFC 7143 11.17.1).
func TestTooManyImmediate(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	l.meter.Hold()
	immediate := func() {
		h := r.command(0x80, 0, 0).put(8, 0, unlimited)
		r.cmdSN--
		h[0] |= 0x40
		r.send(h.put32(24, r.cmdSN), nil)
	}
	for range 64 {
		immediate()
	}
	l.inFlight(t, 64)
	immediate()
	if p := r.recv(0x3f); p.bhs[2] != 6 {
		t.Fatalf("got %v, want Reject with reason 6", p)
	}
	// Those with a number are still taken.
	r.read(0, 1)
	l.meter.Release()
	for range 64 {
		r.good()
	}
	r.alive()
}
