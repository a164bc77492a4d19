package iscsi_test

import (
	"testing"

	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi"
)

// TestFunctionWaits sends immediate functions before commands that they are to
// concern (RFC 7143 4.2.3.3).
func TestFunctionWaits(t *testing.T) {
	l := newLab(t, multi)
	for f, name := range map[byte]string{2: "ABORT TASK SET", 4: "CLEAR TASK SET", 5: "LOGICAL UNIT RESET"} {
		t.Run(name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login("MaxConnections=2")
			x := r.another(l, 1)
			l.meter.Hold()
			defer l.meter.Release()
			before := on1(r.command(0x80, 0, 0))
			x.cmdSN = r.cmdSN
			x.function(f, 1, 0xffffffff, 0)
			// What comes after the function isn't concerned.
			x.send(x.command(0x80, 0, 0), nil)
			x.silence()
			r.send(before, nil)
			x.functionResponse(0)
			if p := x.recv(0x21); f != 5 && p.bhs[3] != 0 {
				t.Errorf("the command after it: %v", p)
			}
			l.meter.Release()
			r.cmdSN = x.cmdSN
			r.alive() // without an answer to the one before
			logout(r)
		})
	}
	for f, name := range map[byte]string{6: "TARGET WARM RESET", 7: "TARGET COLD RESET"} {
		t.Run(name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login("MaxConnections=2")
			x := r.another(l, 1)
			lost, held := r.command(0x80, 0, 0), r.command(0x80, 0, 0)
			r.send(held, nil)
			nop := hdr(0x00, 0x80).put32(16, 0x55).put32(20, 0xffffffff).put32(24, r.next()).put32(28, r.expStatSN)
			r.send(nop, []byte("held"))
			r.alive()
			x.cmdSN = r.cmdSN
			x.function(f, 1, 0xffffffff, 0)
			x.functionResponse(0)
			if p := r.recv(0x20); string(p.data) != "held" {
				t.Errorf("the NOP-Out that isn't a task: %v", p)
			}
			if f == 7 {
				r.closed()
				x.closed()
				return
			}
			// They are void.
			r.send(lost, nil)
			r.alive()
			if r.expCmdSN != r.cmdSN || r.maxCmdSN-r.expCmdSN != iscsi.DefaultCanQueue-1 {
				t.Errorf("the window is %d to %d, want %d commands from %d on", r.expCmdSN, r.maxCmdSN, iscsi.DefaultCanQueue, r.cmdSN)
			}
			logout(r)
		})
	}
}

// stubborn is a unit whose commands ignore that they are aborted.
type stubborn struct {
	lun.Unit
	begun, gate chan struct{}
}

func (stubborn) Blocking() bool { return true }

func (s stubborn) Execute(c *lun.Command) {
	if c.CDB[0] == 0 {
		s.begun <- struct{}{}
		<-s.gate
	}
	s.Unit.Execute(c)
}

// TestLogoutWaits logs a session out, of whose tasks one doesn't end: the answer
// comes when it has (RFC 7143 11.15).
func TestLogoutWaits(t *testing.T) {
	l := newLab(t, multi)
	s := stubborn{l.tgt.Device.Units()[0].Unit(), make(chan struct{}), make(chan struct{})}
	const number = 9
	if _, err := l.tgt.Device.Add(number, s, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		reason byte
		cid    uint16
	}{{"session", 0, 0}, {"another connection", 1, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			r := dial(t, l.addr)
			r.login("MaxConnections=2")
			x := r.another(l, 1)
			x.send(x.command(0x80, 0, 0).put(8, 0, number), nil)
			<-s.begun
			r.cmdSN = x.cmdSN
			r.send(hdr(0x46, 0x80|tt.reason).put32(16, r.tag()).put16(20, tt.cid).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
			r.silence()
			s.gate <- struct{}{}
			if p := r.recv(0x26); p.bhs[2] != 0 {
				t.Errorf("Logout Response %v", p)
			}
			x.closed()
			if tt.reason == 0 {
				r.closed()
			} else {
				r.alive()
			}
		})
	}
}
