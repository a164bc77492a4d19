package iscsi_test

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestShutdown asks initiators to log out, and finishes what is in flight.
func TestShutdown(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	stays := dial(t, l.addr)
	stays.isid[5]++
	stays.login()
	half := dial(t, l.addr)
	half.tryLogin(0, -1, names()...)
	l.meter.Hold()
	r.send(on1(r.command(0xa0, 512, write10(0, 1)...)), random(512, 9))
	l.inFlight(t, 1)

	ended := make(chan error, 1)
	go func() { ended <- l.srv.Shutdown(context.Background()) }()
	for _, x := range []*raw{r, stays} {
		// Logout request: event 1 (RFC 7143 11.9.1).
		if p := x.recv(0x32); p.bhs[36] != 1 || p.u32(16) != 0xffffffff {
			t.Fatalf("got %v", p)
		}
	}
	half.closed()
	if nc, err := net.Dial("tcp", l.addr); err == nil {
		nc.Close()
		t.Error("a new connection is accepted")
	}
	select {
	case err := <-ended:
		t.Fatalf("Shutdown returned %v with a command in flight", err)
	case <-time.After(time.Second):
	}
	l.meter.Release()
	r.good()
	// One logs out, the other doesn't care.
	logout(r)
	stays.closed()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestShutdownGivesUp ends what doesn't end by itself.
func TestShutdownGivesUp(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login()
	l.meter.Hold()
	r.send(on1(r.command(0x80, 0, 0)), nil)
	l.inFlight(t, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := l.srv.Shutdown(ctx); err != context.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	r.closed()
	l.rest(t)
}
