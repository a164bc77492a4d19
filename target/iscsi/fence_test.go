package iscsi_test

import (
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi"
)

func TestTaskReporting(t *testing.T) {
	l := newLab(t, nil)
	for offer, want := range map[string]string{
		"RFC3720": "RFC3720", "FastAbort": "FastAbort", "ResponseFence,FastAbort": "ResponseFence", "X,FastAbort,RFC3720": "FastAbort", "X": "Reject",
	} {
		if got := dial(t, l.addr).login("TaskReporting=" + offer)["TaskReporting"]; got != want {
			t.Errorf("TaskReporting=%s is answered with %s, want %s", offer, got, want)
		}
	}
}

// TestResponseFence keeps the answer to a function apart from the others of its
// session (RFC 7143 4.2.2.3.3).
func TestResponseFence(t *testing.T) {
	l := newLab(t, multi)
	for _, reporting := range []string{"ResponseFence", "FastAbort"} {
		t.Run(reporting, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login("MaxConnections=2", "TaskReporting="+reporting)
			x := r.another(l, 1)
			old := x.expStatSN
			x.send(x.command(0x80, 0, 0).put32(28, old), nil)
			x.good()
			r.cmdSN = x.cmdSN
			r.function(2, 0, 0xffffffff, 0)
			// It waits for the acknowledgment of that, and holds up what comes after.
			ping := x.recv(0x20)
			x.send(x.command(0x80, 0, 0).put32(28, old), nil)
			x.silence()
			r.silence()
			x.send(hdr(0x40, 0x80).put32(16, 0xffffffff).put32(20, ping.u32(20)).put32(24, x.cmdSN).put32(28, x.expStatSN), nil)
			r.functionResponse(0)
			x.silence()
			r.pong(r.recv(0x20))
			x.good()
			x.alive()
			// Another session's reset is told of in the same way.
			other := dial(t, l.addr)
			other.isid[5]++
			other.login()
			other.function(5, 0, 0xffffffff, 0)
			other.functionResponse(0)
			r.cmdSN = x.cmdSN
			h := hdr(0x40, 0x80).put32(16, 0x77).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN)
			r.send(h, nil)
			r.recv(0x20) // which isn't acknowledged
			x.send(x.command(0x80, 0, 0), nil)
			x.silence()
			r.pong(r.recv(0x20))
			if key, code := x.recv(0x21).sense(); key != 6 || code>>8 != 0x29 {
				t.Errorf("sense %x/%04x, want the reset", key, code)
			}
			x.pong(x.recv(0x20))
			r.cmdSN = x.cmdSN
			// A connection that says nothing holds up nothing for good.
			x.send(x.command(0x80, 0, 0), nil)
			x.good()
			r.cmdSN = x.cmdSN
			r.function(2, 0, 0xffffffff, 0)
			x.recv(0x20)
			x.nc.Close()
			if p := r.recv(0x32); p.bhs[36] != 2 {
				t.Errorf("got %v", p)
			}
			r.functionResponse(0)
			r.alive()
		})
	}
	t.Run("one connection", func(t *testing.T) {
		r := dial(t, l.addr)
		r.login("TaskReporting=ResponseFence")
		r.send(r.command(0x80, 0, 0), nil)
		r.good()
		r.function(2, 0, 0xffffffff, 0)
		r.functionResponse(0)
	})
}

// TestFenceFlood sends functions and commands without end by a session that never
// acknowledges, so that each answer waits for another connection's.
func TestFenceFlood(t *testing.T) {
	l := attacked(t, func(o *iscsi.Options, tgt *iscsi.Target) {
		multi(o, tgt)
		o.MaxBuffer = 66 << 20
	})
	// A goroutine for each immediate function that may be in flight, the connections'
	// and those that ping; and the memory that a session may have.
	b := within(64+20, 17<<20)
	l.meanwhile(t, func() {
		r := dial(t, l.addr)
		r.login("MaxConnections=2", "TaskReporting=ResponseFence")
		x := r.another(l, 1)
		old := x.expStatSN
		x.send(x.command(0x80, 0, 0).put32(28, old), nil)
		x.good()
		r.cmdSN = x.cmdSN
		const n = 2000
		for range n {
			r.function(2, 0, 0xffffffff, 0)
		}
		for refused := 0; refused < n-65; { // 64, and the one whose fence stands
			switch p, err := r.tryRecv(rawTimeout); {
			case err != nil:
				t.Fatal(err)
			case p.op() == 0x3f && p.bhs[2] == 6:
				refused++
			case p.op() != 0x20:
				t.Fatalf("got %v", p)
			}
		}
		b.check(t)
		// Commands whose answers are held back, until there are too many.
		r.nc.SetWriteDeadline(time.Now().Add(rawTimeout))
		for i := 0; ; i++ {
			h := r.command(0x80, 0, 0).put(8, 0, 7)
			if _, err := r.nc.Write(h[:]); err != nil {
				break
			}
			if i == 1<<20 {
				t.Fatal("a million answers are held back")
			}
		}
		b.check(t)
		x.nc.Close()
	})
	b.gone(t, l)
}

// TestFastAbort tells the connections whose tasks a function ends
// (RFC 7143 4.2.3.4).
func TestFastAbort(t *testing.T) {
	l := newLab(t, multi)
	for f, name := range map[byte]string{2: "ABORT TASK SET", 4: "CLEAR TASK SET", 5: "LOGICAL UNIT RESET", 6: "TARGET WARM RESET"} {
		t.Run(name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login("MaxConnections=2", "TaskReporting=FastAbort", "ImmediateData=No")
			x := r.another(l, 1)
			other := dial(t, l.addr)
			other.isid[5]++
			other.login("TaskReporting=FastAbort", "ImmediateData=No")
			plain := dial(t, l.addr)
			plain.isid[5] += 2
			plain.login("ImmediateData=No")
			var asked []packet
			for _, c := range []*raw{r, x, other, plain} {
				if c == x {
					x.cmdSN = r.cmdSN
				}
				for range 2 {
					c.send(on1(c.command(0xa0, 512, write10(0, 1)...)), nil)
				}
				asked = append(asked, c.recv(0x31))
				c.recv(0x31)
			}
			r.cmdSN = x.cmdSN
			r.function(f, 1, 0xffffffff, 0)
			told := []*raw{x}
			if f != 2 {
				told = append(told, other)
				// Other nexuses' commands are answered too (SAM-5 5.9.2: TAS is 1).
				for _, c := range []*raw{other, other, plain, plain} {
					if p := c.recv(0x21); p.bhs[3] != 0x40 {
						t.Errorf("got %v, want TASK ABORTED", p)
					}
				}
			}
			for _, c := range told {
				p := c.recv(0x32)
				if p.bhs[36] != 5 || [8]byte(p.bhs[8:16]) != [8]byte{0, 1} {
					t.Errorf("got %v, want the event that tasks of LUN 1 are ended", p)
				}
				c.send(hdr(0x40, 0x80).put(8, 0, 1).put32(16, 0xffffffff).put32(20, 0xffffffff).put32(24, c.cmdSN).put32(28, c.expStatSN), nil)
			}
			x.whilePonging(func() { r.functionResponse(0) })
			// Data that was under way is ignored.
			other.send(other.dataOut(true, asked[2].u32(16), asked[2].u32(20), 0, 0), random(512, 1))
			if f == 2 {
				other.good()
			}
			for _, c := range []*raw{r, x, other, plain} {
				c.alive()
				if c != x && c != r {
					c.silence()
				}
			}
		})
	}
}

// TestQueryAsyncEvent asks whether a unit attention is pending (RFC 7144 4.2).
func TestQueryAsyncEvent(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("iSCSIProtocolLevel=2")
	other := dial(t, l.addr)
	other.isid[5]++
	other.login()
	ask := func(lun byte, response byte, information [3]byte) {
		t.Helper()
		r.function(12, lun, 0xffffffff, 0)
		if p := r.recv(0x22); p.bhs[2] != response || [3]byte(p.bhs[8:]) != information {
			t.Errorf("LUN %d: response %d and %x, want %d and %x", lun, p.bhs[2], p.bhs[8:11], response, information)
		}
	}
	ask(0, 0, [3]byte{})
	ask(1, 0, [3]byte{})
	ask(7, 2, [3]byte{})
	other.function(5, 0, 0xffffffff, 0)
	other.functionResponse(0)
	for range 2 { // it stays pending
		ask(0, 7, [3]byte{0x16, 0x29, 0x03})
	}
	r.attend()
	ask(0, 0, [3]byte{})
}

// noting is a unit that notes the priority of commands.
type noting struct {
	lun.Unit
	priorities chan uint8
}

func (n noting) Execute(c *lun.Command) {
	n.priorities <- c.Priority
	n.Unit.Execute(c)
}

// TestPriority sends commands with a priority (RFC 7144 4.1).
func TestPriority(t *testing.T) {
	l := newLab(t, nil)
	n := noting{l.tgt.Device.Units()[0].Unit(), make(chan uint8, 1)}
	if _, err := l.tgt.Device.Add(9, n, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	for level, want := range map[string]uint8{"1": 0, "2": 0xb} {
		r := dial(t, l.addr)
		r.login("iSCSIProtocolLevel=" + level)
		h := r.command(0x80, 0, 0).put(8, 0, 9)
		h[2] = 0xb0
		r.send(h, nil)
		r.recv(0x21)
		if got := <-n.priorities; got != want {
			t.Errorf("at level %s the priority is %d, want %d", level, got, want)
		}
	}
}
