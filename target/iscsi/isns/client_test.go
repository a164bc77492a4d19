package isns_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lunlab/target/iscsi/isns"
)

// script is an iSNS server that answers as it is told. It shares no code with the
// client.
type script struct {
	t  *testing.T
	ln net.Listener
	// requests has each request: its function, flags, and attributes as text.
	requests chan request
	answers  chan []byte // a status and attributes, for each request
}

type request struct {
	function, flags uint16
	attributes      []string
}

func newScript(t *testing.T) *script {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	s := &script{t, ln, make(chan request), make(chan []byte)}
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			s.serve(nc)
		}
	}()
	return s
}

func (s *script) serve(nc net.Conn) {
	defer nc.Close()
	for {
		var h [12]byte
		if _, err := io.ReadFull(nc, h[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(h[4:]))
		if _, err := io.ReadFull(nc, b); err != nil {
			return
		}
		r := request{function: binary.BigEndian.Uint16(h[2:]), flags: binary.BigEndian.Uint16(h[6:])}
		for len(b) >= 8 {
			n := 8 + binary.BigEndian.Uint32(b[4:])
			r.attributes = append(r.attributes, attribute(binary.BigEndian.Uint32(b), b[8:n]))
			b = b[n:]
		}
		s.requests <- r
		a := <-s.answers
		h[2] |= 0x80
		h[6] = 0x4c
		binary.BigEndian.PutUint16(h[4:], uint16(len(a)))
		nc.Write(append(h[:], a...))
	}
}

func attribute(tag uint32, v []byte) string {
	switch {
	case len(v) == 0:
		return fmt.Sprint(tag)
	case len(v) == 4 && tag != 1 && tag != 32:
		return fmt.Sprintf("%d=%d", tag, binary.BigEndian.Uint32(v))
	case len(v) == 16 && (tag == 16 || tag == 49):
		return fmt.Sprintf("%d=%v", tag, netip.AddrFrom16([16]byte(v)).Unmap())
	}
	return fmt.Sprintf("%d=%s", tag, strings.TrimRight(string(v), "\x00"))
}

// next takes a request and answers it.
func (s *script) next(answer ...byte) request {
	s.t.Helper()
	select {
	case r := <-s.requests:
		s.answers <- answer
		return r
	case <-time.After(time.Minute):
		s.t.Fatal("no request comes")
		return request{}
	}
}

func status(n byte, more ...byte) []byte { return append([]byte{0, 0, 0, n}, more...) }

// seconds is the registration period, as an attribute.
func seconds(n byte) []byte { return []byte{0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 0, n} }

func (s *script) start(set func(*isns.Options)) *isns.Client {
	s.t.Helper()
	o := isns.Options{
		Server: s.ln.Addr().String(), Entity: "lab", Targets: []isns.Target{{Name: "iqn.x:1"}},
		Portals: []isns.Portal{{Addr: netip.MustParseAddrPort("127.0.0.1:3261"), Group: 1}}, Retry: time.Millisecond,
	}
	if set != nil {
		set(&o)
	}
	c, err := isns.Start(o)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

const (
	devAttrReg, devAttrQry, devDereg, scnReg = 1, 2, 4, 5

	clientFirstLast = 0x8c00
	replace         = 0x1000
)

func (s *script) want(got request, function, flags uint16, attributes ...string) {
	s.t.Helper()
	if d := cmp.Diff(request{function, flags, attributes}, got, cmp.AllowUnexported(request{})); d != "" {
		s.t.Fatalf("(-want +got):\n%s", d)
	}
}

// TestRegister is refused at first, registers without inquiries then, is asked
// for again when the server has forgotten it, and deregisters.
func TestRegister(t *testing.T) {
	s := newScript(t)
	c := s.start(nil)
	if r := s.next(status(12)...); r.function != devAttrReg { // busy
		t.Fatalf("got %v", r)
	}
	r := s.next(status(22)...) // no ESI
	if a := strings.Join(r.attributes, " "); !strings.Contains(a, "16=127.0.0.1 17=3261 19=60 20=") || !strings.Contains(a, " 23=") {
		t.Errorf("no ESI is asked for in %s", a)
	}
	registration := []string{"32=iqn.x:1", "1=lab", "0", "1=lab", "2=2", "16=127.0.0.1", "17=3261", "32=iqn.x:1", "33=1", "48=iqn.x:1", "49=127.0.0.1", "50=3261", "51=1"}
	s.want(s.next(status(0, seconds(1)...)...), devAttrReg, clientFirstLast|replace, registration...)
	query := []string{"32=iqn.x:1", "1=lab", "0", "1", "6"}
	here := status(0, append([]byte{0, 0, 0, 1, 0, 0, 0, 4, 'l', 'a', 'b', 0}, seconds(1)...)...)
	s.want(s.next(here...), devAttrQry, clientFirstLast, query...)
	s.want(s.next(status(9)...), devAttrQry, clientFirstLast, query...) // no such entry
	s.next(status(22)...)
	s.want(s.next(status(0)...), devAttrReg, clientFirstLast|replace, registration...)
	done := make(chan struct{})
	go func() { defer close(done); c.Close() }()
	s.want(s.next(status(0)...), devDereg, clientFirstLast, "32=iqn.x:1", "0", "1=lab")
	<-done
}

// TestInquiries asks the client for its status and tells it of changes.
func TestInquiries(t *testing.T) {
	s := newScript(t)
	c := s.start(nil)
	var port int
	for _, a := range s.next(status(0)...).attributes {
		fmt.Sscanf(a, "20=%d", &port)
	}
	s.want(s.next(status(0)...), scnReg, clientFirstLast, "32=iqn.x:1", "32=iqn.x:1", "0", "35=88")
	nc, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ask := func(function byte, payload, want string) {
		t.Helper()
		nc.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(nc, "\x00\x01\x00%c\x00%c\x4c\x00\x00\x09\x00\x00%s", function, len(payload), payload)
		b := make([]byte, 12+len(want))
		if _, err := io.ReadFull(nc, b); err != nil {
			t.Fatal(err)
		}
		if head := fmt.Sprintf("\x00\x01\x80%c\x00%c\x8c\x00\x00\x09\x00\x00", function, len(want)); string(b) != head+want {
			t.Errorf("function %x: got %q, want %q", function, b, head+want)
		}
	}
	entity := "\x00\x00\x00\x01\x00\x00\x00\x04lab\x00"
	name := "\x00\x00\x00\x20\x00\x00\x00\x08iqn.x:1\x00"
	ask(0x0d, entity, "\x00\x00\x00\x00"+entity)
	ask(0x08, name+"\x00\x00\x00\x23\x00\x00\x00\x04\x00\x00\x00\x50", "\x00\x00\x00\x00"+name)
	// It looks whether it is still registered, at once.
	if r := s.next(status(9)...); r.function != devAttrQry {
		t.Errorf("got %v", r)
	}
	if r := s.next(status(0)...); r.function != devAttrReg {
		t.Errorf("got %v", r)
	}
	s.next(status(0)...)
	ask(0x0d, "\x00\x00\x00\x01\xff\xff\xff\xfc", "\x00\x00\x00\x02") // beyond its end
	ask(0x7f, "", "\x00\x00\x00\x0f")
	done := make(chan struct{})
	go func() { defer close(done); c.Close() }()
	s.next(status(0)...)
	<-done
}

// TestManyTargets registers more than a PDU holds.
func TestManyTargets(t *testing.T) {
	const n = 1000
	s := newScript(t)
	c := s.start(func(o *isns.Options) {
		o.NoInquiries, o.Targets = true, nil
		for i := range n {
			o.Targets = append(o.Targets, isns.Target{Name: fmt.Sprintf("iqn.2026-01.example:%0100d", i)})
		}
	})
	nodes, groups := 0, 0
	for i := 0; groups < n; i++ {
		r := s.next(status(0)...)
		if r.function != devAttrReg || (r.flags&replace != 0) != (i == 0) || r.attributes[1] != "1=lab" || r.attributes[3] != "1=lab" {
			t.Fatalf("request %d: %x %x %q", i, r.function, r.flags, r.attributes[:4])
		}
		for _, a := range r.attributes {
			if strings.HasPrefix(a, "33=") {
				nodes++
			}
			if strings.HasPrefix(a, "51=") {
				groups++
			}
		}
	}
	if nodes != n || groups != n {
		t.Errorf("%d nodes and %d portal groups, want %d", nodes, groups, n)
	}
	done := make(chan struct{})
	go func() { defer close(done); c.Close() }()
	s.next(status(0)...)
	<-done
}

func TestOptions(t *testing.T) {
	one := []isns.Target{{Name: "iqn.x:1"}}
	portals := []isns.Portal{{Addr: netip.MustParseAddrPort("127.0.0.1:3261"), Group: 1}}
	for name, o := range map[string]isns.Options{
		"no target":          {Server: "h", Portals: portals},
		"no portal":          {Server: "h", Targets: one},
		"an entity too long": {Server: "h", Targets: one, Portals: portals, Entity: strings.Repeat("x", 256)},
	} {
		if c, err := isns.Start(o); err == nil {
			c.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
