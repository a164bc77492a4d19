package iscsi_test

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lunlab/target/iscsi"
)

// listen opens a further portal of the server, in group tag.
func (l *lab) listen(t *testing.T, tag uint16) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go l.srv.ServeGroup(ln, tag)
	return ln.Addr().String()
}

// discover logs in for discovery.
func (r *raw) discover(pairs ...string) {
	r.t.Helper()
	if p := r.tryLogin(1, 3, append([]string{"InitiatorName=" + testInitiator, "SessionType=Discovery"}, pairs...)...); p.u16(36) != 0 {
		r.t.Fatalf("login: %v", p)
	}
}

// sendTargets asks for targets and returns the answer's pairs in order.
func (r *raw) sendTargets(which string) []string {
	r.t.Helper()
	r.send(hdr(0x04, 0x80).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.next()).put32(28, r.expStatSN), text("SendTargets="+which))
	return strings.Split(strings.TrimSuffix(string(r.recv(0x24).data), "\x00"), "\x00")
}

// TestPortalGroups has a target in all groups, and one in the second only.
func TestPortalGroups(t *testing.T) {
	const narrow = testTarget + ":narrow"
	l := newLab(t, func(o *iscsi.Options, tgt *iscsi.Target) {
		c := *tgt
		c.Name, c.PortalGroups, c.HWQueues = narrow, []uint16{7}, 4
		o.Targets = append(o.Targets, &c)
	})
	// The server's own listener may not have been noted down yet when the first
	// connection is there, so both are asked by a connection that came by them.
	addrs := []string{l.listen(t, 7), l.listen(t, 7)}
	slices.Sort(addrs)
	for _, a := range append([]string{l.addr}, addrs...) {
		r := dial(t, a)
		r.discover()
		r.alive()
	}
	all := func(first string, more ...string) (list []string) {
		list = append(list, "TargetName="+testTarget, "TargetAddress="+first)
		rest := []string{}
		for _, a := range []string{l.addr + ",1", addrs[0] + ",7", addrs[1] + ",7"} {
			if a != first {
				rest = append(rest, "TargetAddress="+a)
			}
		}
		slices.Sort(rest)
		return append(append(list, rest...), more...)
	}
	seven := func(first, second string) []string {
		return []string{"TargetName=" + narrow, "TargetAddress=" + first + ",7", "TargetAddress=" + second + ",7"}
	}
	for _, tt := range []struct {
		at, which string
		want      []string
	}{
		{l.addr, "All", all(l.addr+",1", seven(addrs[0], addrs[1])...)},
		{addrs[1], "All", all(addrs[1]+",7", seven(addrs[1], addrs[0])...)},
		{l.addr, narrow, seven(addrs[0], addrs[1])},
		{addrs[0], strings.ToUpper(testTarget), all(addrs[0] + ",7")},
		{addrs[0], "", []string{""}},
	} {
		r := dial(t, tt.at)
		r.discover()
		if d := cmp.Diff(tt.want, r.sendTargets(tt.which)); d != "" {
			t.Errorf("SendTargets=%s at %s (-want +got):\n%s", tt.which, tt.at, d)
		}
	}
	login := func(at string, tsih, cid uint16) (*raw, packet) {
		r := dial(t, at)
		r.tsih, r.cid = tsih, cid
		return r, r.tryLogin(1, 3, "InitiatorName="+testInitiator, "TargetName="+narrow, "MaxConnections=4")
	}
	if _, p := login(l.addr, 0, 0); p.u16(36) != 0x0203 {
		t.Errorf("login by a portal that isn't the target's: %v", p)
	}
	r, p := login(addrs[0], 0, 0)
	if got := values(p.data); p.u16(36) != 0 || got["TargetPortalGroupTag"] != "7" || got["MaxConnections"] != "4" {
		t.Fatalf("login: %v", p)
	}
	// In a normal session: the own target, by its name or none, and no other.
	for which, want := range map[string][]string{"": seven(addrs[0], addrs[1]), narrow: seven(addrs[0], addrs[1]), testTarget: {""}, "All": {"SendTargets=Reject"}} {
		if d := cmp.Diff(want, r.sendTargets(which)); d != "" {
			t.Errorf("SendTargets=%s in a session (-want +got):\n%s", which, d)
		}
	}
	// Another connection by another portal of the group.
	x, q := login(addrs[1], p.u16(14), 1)
	if q.u16(36) != 0 {
		t.Fatalf("second connection: %v", q)
	}
	x.cmdSN = r.cmdSN
	x.alive()
	r.alive()
}

// TestSendTargetsTwice asks twice in one request, which would multiply the answer.
func TestSendTargetsTwice(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.discover()
	r.send(hdr(0x04, 0x80).put32(16, r.tag()).put32(20, 0xffffffff).put32(24, r.next()).put32(28, r.expStatSN), text("SendTargets=All", "SendTargets=All"))
	if p := r.recv(0x3f); p.bhs[2] != 4 {
		t.Errorf("got %v, want Reject with reason 4", p)
	}
	r.alive()
}

// TestTextInParts negotiates in requests that go on, with keys that are cut (C) and
// without (F is 0). A key that comes again is refused with all of it.
func TestTextInParts(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	send := func(flags byte, ttt uint32, data string) {
		r.send(hdr(0x44, flags).put32(16, 0x77).put32(20, ttt).put32(24, r.cmdSN).put32(28, r.expStatSN), []byte(data))
	}
	goesOn := func() uint32 {
		t.Helper()
		p := r.recv(0x24)
		if p.bhs[1] != 0 || p.u32(20) == 0xffffffff || len(p.data) > 0 {
			t.Fatalf("got %v, want a response that goes on, without text", p)
		}
		return p.u32(20)
	}
	send(0x40, 0xffffffff, "X-one=1\x00MaxRecvDataSegm")
	send(0x00, goesOn(), "entLength=1024\x00")
	p := r.recv(0x24)
	if p.bhs[1] != 0 || string(p.data) != "X-one=NotUnderstood\x00" {
		t.Fatalf("got %v", p)
	}
	send(0x80, p.u32(20), "X-two=1\x00")
	if p = r.recv(0x24); p.bhs[1] != 0x80 || p.u32(20) != 0xffffffff || string(p.data) != "X-two=NotUnderstood\x00" {
		t.Fatalf("got %v", p)
	}
	r.send(r.command(0xc0, 4096, read10(0, 8)...), nil)
	for range 4 {
		if p = r.recv(0x25); len(p.data) != 1024 {
			t.Errorf("Data-In of %d bytes, want 1024", len(p.data))
		}
	}
	send(0x00, 0xffffffff, "MaxRecvDataSegmentLength=2048\x00")
	send(0x80, goesOn(), "MaxRecvDataSegmentLength=4096\x00")
	if p = r.recv(0x3f); p.bhs[2] != 4 {
		t.Errorf("a key that comes again: got %v, want Reject with reason 4", p)
	}
	r.alive()
}
