package iscsi_test

import (
	"bytes"
	"testing"

	"lunlab/target/iscsi/pdu"
)

// as gives a command a task attribute.
func (h *header) as(attr byte) *header { return h.put(1, h[1]&^7|attr) }

// TestOrdered has commands with their data wait for one whose data hasn't come,
// and for an ORDERED one.
func TestOrdered(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("ImmediateData=Yes", "InitialR2T=Yes")
	old, first, second := random(512, 1), random(512, 2), random(512, 3)
	r.send(r.command(0xa0, 512, write10(0, 1)...), nil)
	q := r.recv(0x31)
	r.send(r.command(0xa0, 512, write10(0, 1)...).as(pdu.AttrOrdered), first)
	r.send(r.command(0xa0, 512, write10(1, 1)...), second)
	r.silence()
	// HEAD OF QUEUE isn't held up.
	r.send(r.command(0x80, 0, 0).as(pdu.AttrHeadOfQueue), nil)
	r.good()
	r.send(r.dataOut(true, q.u32(16), q.u32(20), 0, 0), old)
	for range 3 {
		r.good()
	}
	if got := r.read(0, 2); !bytes.Equal(got, append(first, second...)) {
		t.Error("the ORDERED write wasn't last, or data was mixed up")
	}
}

// TestACA goes through an ACA condition (SAM-5 5.9).
func TestACA(t *testing.T) {
	l := newLab(t, nil)
	r := dial(t, l.addr)
	r.login("iSCSIProtocolLevel=2")
	other := dial(t, l.addr)
	other.isid[5]++
	other.login()
	for _, c := range []*raw{r, other} {
		c.attend()
	}
	status := func(c *raw, want byte) packet {
		t.Helper()
		p := c.recv(0x21)
		if p.bhs[3] != want {
			t.Fatalf("got %v, want status %02x", p, want)
		}
		return p
	}
	r.send(r.command(0x80, 0, 0, 0, 0, 0, 1, 4), nil) // a reserved bit; NACA
	status(r, 0x02)
	r.send(r.command(0x80, 0, 0), nil)
	status(r, 0x30)
	other.send(other.command(0x80, 0, 0), nil)
	status(other, 0x08)
	r.send(r.command(0x80, 0, 0).as(pdu.AttrACA), nil)
	r.good()
	r.function(3, 0, 0xffffffff, 0)
	r.functionResponse(0)
	for _, c := range []*raw{r, other} {
		c.send(c.command(0x80, 0, 0), nil)
		c.good()
	}
	r.send(r.command(0x80, 0, 0).as(pdu.AttrACA), nil)
	if key, code := status(r, 0x02).sense(); key != 5 || code != 0x4900 {
		t.Errorf("ACA without a condition: sense %x/%04x", key, code)
	}
	// QUERY ASYNCHRONOUS EVENT, before an I_T NEXUS RESET and after it.
	r.function(12, 0, 0xffffffff, 0)
	r.functionResponse(0)
	r.function(11, 0, 0xffffffff, 0)
	r.functionResponse(0)
	r.function(12, 0, 0xffffffff, 0)
	if p := r.recv(0x22); p.bhs[2] != 7 || !bytes.Equal(p.bhs[8:11], []byte{0x16, 0x29, 0x07}) {
		t.Errorf("got %v, want one event, I_T NEXUS LOSS", p)
	}
	r.send(r.command(0x80, 0, 0), nil)
	if key, code := status(r, 0x02).sense(); key != 6 || code != 0x2907 {
		t.Errorf("after I_T NEXUS RESET: sense %x/%04x", key, code)
	}
}
