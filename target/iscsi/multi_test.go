package iscsi_test

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"lunlab/target/iscsi"
)

// another opens a further connection of r's session. Both number their commands
// together, so that r's count has to be handed over by the caller.
func (r *raw) another(l *lab, cid uint16) *raw {
	r.t.Helper()
	x := dial(r.t, l.addr)
	x.isid, x.tsih, x.cid, x.cmdSN, x.itt = r.isid, r.tsih, cid, r.cmdSN, uint32(cid)<<16
	if p := x.tryLogin(1, 3, names()...); p.u16(36) != 0 || p.u16(14) != r.tsih {
		r.t.Fatalf("connection %d: %v", cid, p)
	}
	return x
}

func multi(_ *iscsi.Options, t *iscsi.Target) { t.HWQueues = 16 }

// TestMultipleConnections runs a session over 16 connections.
func TestMultipleConnections(t *testing.T) {
	l := newLab(t, multi)
	r := dial(t, l.addr)
	if got := r.login("MaxConnections=100", "ImmediateData=No"); got["MaxConnections"] != "16" {
		t.Fatalf("MaxConnections is %s", got["MaxConnections"])
	}
	conns := []*raw{r}
	for cid := uint16(1); cid < 16; cid++ {
		conns = append(conns, r.another(l, cid))
	}
	x := dial(t, l.addr)
	x.isid, x.tsih, x.cid = r.isid, r.tsih, 16
	if p := x.tryLogin(1, 3, names()...); p.u16(36) != 0x0206 {
		t.Errorf("connection 17: %v", p)
	}

	// Commands, as many as the LUN takes, are taken by number whatever way they come: the last first. Data
	// moves on the connection of its command.
	sn := r.cmdSN
	for i, c := range slices.Backward(conns[:8]) {
		c.cmdSN = sn + uint32(i)
		c.send(c.command(0xa0, 512, write10(uint32(i), 1)...), nil)
		if i > 0 {
			c.silence()
		}
	}
	for i, c := range conns[:8] {
		q := c.recv(0x31)
		c.send(c.dataOut(true, q.u32(16), q.u32(20), 0, 0), random(512, byte(i)))
	}
	for _, c := range conns[:8] {
		c.good()
	}
	for i, c := range conns[:8] {
		c.cmdSN = sn + 8 + uint32(i)
		if got := c.read(uint32(i), 1); !bytes.Equal(got, random(512, byte(i))) {
			t.Errorf("block %d doesn't read back", i)
		}
	}
	for _, c := range conns {
		c.cmdSN = sn + 16
	}

	// A function by one connection ends a task of another.
	l.meter.Hold()
	conns[3].send(on1(conns[3].command(0x80, 0, 0)), nil)
	l.inFlight(t, 1)
	conns[5].cmdSN = sn + 17
	conns[5].function(1, 1, 0x1000+conns[3].itt, sn+16)
	conns[5].functionResponse(0)
	conns[3].silence()
	l.meter.Release()
	for _, c := range conns {
		c.cmdSN = sn + 17
	}

	// One connection is logged out by another, the session lives on.
	r.send(hdr(0x46, 0x81).put32(16, r.tag()).put16(20, 7).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	if p := r.recv(0x26); p.bhs[2] != 0 {
		t.Fatalf("Logout Response %v", p)
	}
	conns[7].closed()
	r.send(hdr(0x46, 0x81).put32(16, r.tag()).put16(20, 7).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	if p := r.recv(0x26); p.bhs[2] != 1 {
		t.Fatalf("Logout Response %v, want CID not found", p)
	}
	r.send(hdr(0x46, 0x82).put32(16, r.tag()).put16(20, 8).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
	if p := r.recv(0x26); p.bhs[2] != 2 {
		t.Fatalf("Logout Response %v, want recovery not supported", p)
	}
	// One logs itself out.
	last := conns[15]
	last.send(hdr(0x46, 0x81).put32(16, last.tag()).put16(20, 15).put32(24, r.cmdSN).put32(28, last.expStatSN), nil)
	if p := last.recv(0x26); p.bhs[2] != 0 {
		t.Fatalf("Logout Response %v", p)
	}
	last.closed()
	// Its place is free, and one that is taken for dead is replaced.
	seven := r.another(l, 7)
	again := r.another(l, 9)
	conns[9].closed()
	seven.alive()
	again.alive()
	r.alive()

	// All end with the session.
	logout(r)
	for i, c := range conns[1:] {
		if i+1 != 7 && i+1 != 9 {
			c.closed()
		}
	}
	seven.closed()
	again.closed()
}

// TestConnectionLost loses a connection with commands at all stages. The others
// are told, and nothing stays behind.
func TestConnectionLost(t *testing.T) {
	l := newLab(t, multi)
	r := dial(t, l.addr)
	r.login("MaxConnections=4", "ImmediateData=No")
	x := r.another(l, 1)
	l.meter.Hold()
	x.send(on1(x.command(0x80, 0, 0)), nil)
	x.send(x.command(0xa0, 512, write10(0, 1)...), nil)
	x.recv(0x31)
	l.inFlight(t, 1)
	lost := x.next()
	x.send(x.command(0x80, 0, 0), nil) // waits for the one before it
	x.silence()
	x.nc.Close()
	if p := r.recv(0x32); p.bhs[36] != 2 || p.u16(38) != 1 {
		t.Fatalf("got %v, want the event that connection 1 is gone", p)
	}
	l.rest(t)
	l.meter.Release()
	// What waited for its turn can be sent again, by this one.
	r.cmdSN = lost
	r.send(r.command(0x80, 0, 0), nil)
	r.good()
	r.send(r.command(0x80, 0, 0), nil)
	r.good()
	r.alive()
}

// TestPortals serves two portal groups.
func TestPortals(t *testing.T) {
	l := newLab(t, multi)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	second := ln.Addr().String()
	go l.srv.ServeGroup(ln, 7)
	r := dial(t, l.addr)
	r.login("MaxConnections=2")
	other := dial(t, second)
	if got := other.login(); got["TargetPortalGroupTag"] != "7" {
		t.Errorf("TargetPortalGroupTag is %s", got["TargetPortalGroupTag"])
	}
	// The same ISID by another group is another nexus.
	r.alive()
	other.alive()
	// And a session doesn't span groups (RFC 7143 4.4.1).
	x := dial(t, second)
	x.isid, x.tsih, x.cid = r.isid, r.tsih, 1
	if p := x.tryLogin(1, 3, names()...); p.u16(36) != 0x020a {
		t.Errorf("a connection by the other group: %v", p)
	}
	r.send(hdr(0x44, 0x80).put32(16, 1).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN), text("SendTargets="))
	p := r.recv(0x24)
	if got, want := strings.Split(values(p.data)["TargetAddress"], " "), []string{l.addr + ",1", second + ",7"}; !slices.Equal(got, want) {
		t.Errorf("portals %q, want %q", got, want)
	}
}

func TestIPv6(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	l := newLab(t, nil)
	go l.srv.Serve(ln)
	r := dial(t, ln.Addr().String())
	r.login()
	r.send(hdr(0x44, 0x80).put32(16, 1).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN), text("SendTargets="))
	if p := r.recv(0x24); !strings.Contains(string(p.data), "TargetAddress="+ln.Addr().String()+",1\x00") {
		t.Errorf("SendTargets: %q", p.data)
	}
}
