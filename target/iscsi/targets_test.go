package iscsi_test

import (
	"testing"

	"lunlab/target"
	"lunlab/target/iscsi"
)

// TestSetTargets takes LUNs, the right to log in, and the target away from a
// session that is there.
func TestSetTargets(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	r.attend()
	set := func(list ...*iscsi.Target) {
		t.Helper()
		if err := l.srv.SetTargets(list); err != nil {
			t.Fatal(err)
		}
	}
	with := func(a ...iscsi.Access) *iscsi.Target {
		return &iscsi.Target{Name: testTarget, Device: l.tgt.Device, Access: a}
	}
	reportLUNs := func() uint32 {
		t.Helper()
		r.send(r.command(0xc0, 256, 0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0), nil)
		return uint32(r.recv(0x25).data[3]) / 8
	}
	before := reportLUNs()
	// As before: nothing to tell.
	set(with())
	r.alive()
	// Fewer LUNs.
	set(with(iscsi.Access{LUNs: []uint16{0}}))
	r.send(r.command(0x80, 0, 0, 0, 0, 0, 0, 0), nil)
	if key, code := r.recv(0x21).sense(); key != 6 || code != 0x3f0e {
		t.Errorf("sense %#x/%#04x; want REPORTED LUNS DATA HAS CHANGED", key, code)
	}
	r.alive()
	if got := reportLUNs(); got != 1 || before <= 1 {
		t.Errorf("%d LUNs of %d are there, want 1", got, before)
	}
	// A login of the same initiator port takes the place of its session.
	set(with())
	other := dial(t, l.addr)
	other.login()
	// What is wrong changes nothing.
	if err := l.srv.SetTargets([]*iscsi.Target{with(), with()}); err == nil {
		t.Error("two targets of one name gave no error")
	}
	other.alive()
	// Somebody else's.
	set(with(iscsi.Access{Initiator: "iqn.2026-01.example:other"}))
	other.closed()
	if p := dial(t, l.addr).tryLogin(1, 3, names()...); p.u16(36) == 0 {
		t.Error("an initiator that may not log in did")
	}
	// Another target of that name.
	set(with())
	r = dial(t, l.addr)
	r.login()
	set(&iscsi.Target{Name: testTarget, Device: target.New()})
	r.closed()
}
