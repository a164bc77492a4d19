package iscsi_test

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
)

// raw is an initiator that sends exactly the bytes it is told to. It shares no
// code with the target: headers are written by offset, as the RFC draws them.
type raw struct {
	t      testing.TB
	nc     net.Conn
	r      *bufio.Reader
	hd, dd bool // digests

	cmdSN, expStatSN, itt uint32
	maxCmdSN, expCmdSN    uint32 // as last heard
	isid                  [6]byte
	target                string // testTarget if empty
	tsih                  uint16
	cid                   uint16
}

// packet is a PDU as it came: header and data, without padding and digests.
type packet struct {
	bhs  []byte
	data []byte
}

func (p packet) op() byte            { return p.bhs[0] & 0x3f }
func (p packet) u32(at int) uint32   { return binary.BigEndian.Uint32(p.bhs[at:]) }
func (p packet) u16(at int) uint16   { return binary.BigEndian.Uint16(p.bhs[at:]) }
func (p packet) String() string      { return fmt.Sprintf("%x %q", p.bhs, p.data) }
func (p packet) sense() (byte, uint) { return p.data[4] & 0xf, uint(p.data[14])<<8 | uint(p.data[15]) }

// header is a header to be sent: opcode (with the I bit) and flags, and more by
// offset.
type header [48]byte

func hdr(op, flags byte) *header { return &header{op, flags} }

func (h *header) put32(at int, v uint32) *header {
	binary.BigEndian.PutUint32(h[at:], v)
	return h
}

func (h *header) put16(at int, v uint16) *header {
	binary.BigEndian.PutUint16(h[at:], v)
	return h
}

func (h *header) put(at int, b ...byte) *header {
	copy(h[at:], b)
	return h
}

// rawTimeout is for what comes at once, on a machine that is far too slow.
const rawTimeout = 2 * time.Minute

func dial(t testing.TB, addr string) *raw {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &raw{t: t, nc: nc, r: bufio.NewReaderSize(nc, 1<<20), cmdSN: 100, isid: [6]byte{0x80, 1, 2, 3, 4, 5}}
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// send writes h with the length of data, data, padding and digests.
func (r *raw) send(h *header, data []byte) {
	r.t.Helper()
	h[5], h[6], h[7] = byte(len(data)>>16), byte(len(data)>>8), byte(len(data))
	r.sendAs(h, data)
}

// sendAs is send with the lengths that h has.
func (r *raw) sendAs(h *header, data []byte) {
	r.t.Helper()
	r.sendSegments(h, nil, data)
}

// sendSegments is sendAs with additional header segments, which the header's digest
// covers.
func (r *raw) sendSegments(h *header, ahs, data []byte) {
	r.t.Helper()
	digested := func(on bool, b []byte) []byte {
		if on {
			b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crcTable))
		}
		return b
	}
	b := digested(r.hd, slices.Concat(h[:], ahs))
	if len(data) > 0 {
		b = append(b, digested(r.dd, slices.Concat(data, make([]byte, -len(data)&3)))...)
	}
	r.nc.SetWriteDeadline(time.Now().Add(rawTimeout))
	if _, err := r.nc.Write(b); err != nil {
		r.t.Fatalf("send %x: %v", h[:], err)
	}
}

// tryRecv reads one PDU.
func (r *raw) tryRecv(d time.Duration) (p packet, err error) {
	r.nc.SetReadDeadline(time.Now().Add(d))
	p.bhs = make([]byte, 48)
	if _, err := io.ReadFull(r.r, p.bhs); err != nil {
		return p, err
	}
	digest := make([]byte, 4)
	if r.hd {
		if _, err := io.ReadFull(r.r, digest); err != nil {
			return p, err
		}
		if got := binary.LittleEndian.Uint32(digest); got != crc32.Checksum(p.bhs, crcTable) {
			return p, errors.New("header digest is wrong")
		}
	}
	n := int(p.bhs[5])<<16 | int(p.bhs[6])<<8 | int(p.bhs[7])
	padded := make([]byte, n+(-n&3))
	if _, err := io.ReadFull(r.r, padded); err != nil {
		return p, err
	}
	if r.dd && n > 0 {
		if _, err := io.ReadFull(r.r, digest); err != nil {
			return p, err
		}
		if got := binary.LittleEndian.Uint32(digest); got != crc32.Checksum(padded, crcTable) {
			return p, errors.New("data digest is wrong")
		}
	}
	for _, b := range padded[n:] {
		if b != 0 {
			return p, fmt.Errorf("padding is %x, not zeros", padded[n:])
		}
	}
	p.data = padded[:n]
	r.expCmdSN, r.maxCmdSN = p.u32(28), p.u32(32)
	status := true
	switch p.op() {
	case 0x25:
		status = p.bhs[1]&1 != 0
	case 0x31:
		status = false
	case 0x20:
		status = p.u32(16) != 0xffffffff
	}
	if status {
		if sn := p.u32(24); p.op() != 0x23 && sn != r.expStatSN {
			return p, fmt.Errorf("StatSN %d, not %d, in %v", sn, r.expStatSN, p)
		}
		r.expStatSN = p.u32(24) + 1
	}
	return p, nil
}

// recv reads a PDU, which has to be of the given opcode.
func (r *raw) recv(op byte) packet {
	r.t.Helper()
	p, err := r.tryRecv(rawTimeout)
	if err != nil {
		r.t.Fatalf("waiting for opcode 0x%02x: %v", op, err)
	}
	if p.op() != op {
		r.t.Fatalf("got opcode 0x%02x, want 0x%02x: %v", p.op(), op, p)
	}
	return p
}

// silence requires that nothing comes for a moment.
func (r *raw) silence() {
	r.t.Helper()
	p, err := r.tryRecv(50 * time.Millisecond)
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		r.t.Fatalf("got %v (%v), want silence", p, err)
	}
}

// closed requires that the target closes the connection, before or after some
// more PDUs.
func (r *raw) closed() {
	r.t.Helper()
	for {
		if p, err := r.tryRecv(rawTimeout); err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				r.t.Fatal("the connection stays open")
			}
			return
		} else if p.op() == 0 {
			r.t.Fatalf("got %v", p)
		}
	}
}

func text(pairs ...string) []byte {
	if len(pairs) == 0 {
		return nil
	}
	return []byte(strings.Join(pairs, "\x00") + "\x00")
}

// loginHeader is a Login Request from stage csg, to nsg if it isn't negative.
func (r *raw) loginHeader(csg, nsg int) *header {
	flags := byte(csg << 2)
	if nsg >= 0 {
		flags |= 0x80 | byte(nsg)
	}
	return hdr(0x43, flags).put(8, r.isid[:]...).put16(14, r.tsih).put32(16, 1).put16(20, r.cid).
		put32(24, r.cmdSN).put32(28, r.expStatSN)
}

// tryLogin sends one Login Request with pairs and returns the response.
func (r *raw) tryLogin(csg, nsg int, pairs ...string) packet {
	r.t.Helper()
	r.send(r.loginHeader(csg, nsg), text(pairs...))
	return r.recv(0x23)
}

const (
	testTarget    = "iqn.2026-01.example.lunlab:test"
	testInitiator = "iqn.2026-01.example.initiator:raw"
)

func names() []string { return new(raw).names() }

// names are the keys that say who the initiator is and what it wants.
func (r *raw) names() []string {
	return []string{"InitiatorName=" + testInitiator, "TargetName=" + cmp.Or(r.target, testTarget), "SessionType=Normal"}
}

// login takes the connection to full feature phase with the given operational
// keys and returns what the target answered, by key.
func (r *raw) login(pairs ...string) map[string]string {
	r.t.Helper()
	p := r.tryLogin(1, 3, append(r.names(), pairs...)...)
	if s := p.u16(36); s != 0 || p.bhs[1] != 0x87 {
		r.t.Fatalf("login: status %04x, flags %02x", s, p.bhs[1])
	}
	r.tsih = p.u16(14)
	got := values(p.data)
	r.hd, r.dd = got["HeaderDigest"] == "CRC32C", got["DataDigest"] == "CRC32C"
	r.attend()
	return got
}

// attend takes the unit attentions that are pending for the nexus.
func (r *raw) attend() {
	r.t.Helper()
	for lun := range byte(2) {
		for range 5 {
			r.send(r.command(0x80, 0, 0).put(8, 0, lun), nil)
			p := r.recv(0x21)
			if p.bhs[3] == 0 {
				break
			}
			if key, _ := p.sense(); key != 6 {
				r.t.Fatalf("TEST UNIT READY: %v", p)
			}
		}
	}
}

func values(b []byte) map[string]string {
	m := map[string]string{}
	for kv := range strings.SplitSeq(strings.TrimSuffix(string(b), "\x00"), "\x00") {
		k, v, _ := strings.Cut(kv, "=")
		if old, ok := m[k]; ok {
			v = old + " " + v
		}
		m[k] = v
	}
	return m
}

// next takes a CmdSN.
func (r *raw) next() uint32 {
	r.cmdSN++
	return r.cmdSN - 1
}

func (r *raw) tag() uint32 {
	r.itt++
	return 0x1000 + r.itt
}

// command is a SCSI Command header for LUN 0: flags has F, R, W; the attribute is
// simple.
func (r *raw) command(flags byte, length uint32, cdb ...byte) *header {
	return hdr(0x01, flags|1).put32(16, r.tag()).put32(20, length).put32(24, r.next()).put32(28, r.expStatSN).put(32, cdb...)
}

// dataOut is a Data-Out header.
func (r *raw) dataOut(final bool, itt, ttt, sn, off uint32) *header {
	h := hdr(0x05, 0).put32(16, itt).put32(20, ttt).put32(28, r.expStatSN).put32(36, sn).put32(40, off)
	if final {
		h[1] = 0x80
	}
	return h
}

func read10(lba, blocks uint32) []byte {
	return []byte{0x28, 0, byte(lba >> 24), byte(lba >> 16), byte(lba >> 8), byte(lba), 0, byte(blocks >> 8), byte(blocks), 0}
}

func write10(lba, blocks uint32) []byte {
	b := read10(lba, blocks)
	b[0] = 0x2a
	return b
}

// read reads blocks from LUN 0 and returns the data, checking the Data-In PDUs'
// numbers and the status.
func (r *raw) read(lba, blocks uint32) []byte {
	r.t.Helper()
	n := blocks * 512
	r.send(r.command(0xc0, n, read10(lba, blocks)...), nil)
	b := make([]byte, 0, n)
	for sn := uint32(0); ; sn++ {
		p := r.recv(0x25)
		if p.u32(36) != sn || p.u32(40) != uint32(len(b)) {
			r.t.Fatalf("Data-In %d at %d, want %d at %d", p.u32(36), p.u32(40), sn, len(b))
		}
		b = append(b, p.data...)
		if p.bhs[1]&1 != 0 {
			if p.bhs[3] != 0 || p.bhs[1]&0x80 == 0 || p.bhs[1]&6 != 0 {
				r.t.Fatalf("the last Data-In is %v", p)
			}
			break
		}
	}
	if len(b) != int(n) {
		r.t.Fatalf("read %d bytes, want %d", len(b), n)
	}
	return b
}

// good requires a SCSI Response with status GOOD and no residual.
func (r *raw) good() {
	r.t.Helper()
	if p := r.recv(0x21); p.bhs[2] != 0 || p.bhs[3] != 0 || p.bhs[1] != 0x80 {
		r.t.Fatalf("got %v, want GOOD", p)
	}
}

// alive requires that the connection still serves. It may be asked the same
// meanwhile.
func (r *raw) alive() {
	r.t.Helper()
	r.send(hdr(0x40, 0x80).put32(16, 0x77).put32(20, 0xffffffff).put32(24, r.cmdSN).put32(28, r.expStatSN), []byte("ping!"))
	p := r.recv(0x20)
	for p.u32(16) == 0xffffffff {
		r.pong(p)
		p = r.recv(0x20)
	}
	if string(p.data) != "ping!" || p.u32(16) != 0x77 {
		r.t.Fatalf("NOP-In is %v", p)
	}
}

// pong answers a NOP-In that asks for an answer, and so acknowledges what has come.
func (r *raw) pong(p packet) {
	r.t.Helper()
	if p.u32(16) != 0xffffffff || p.u32(20) == 0xffffffff {
		r.t.Fatalf("got %v, want a NOP-In that asks for an answer", p)
	}
	r.send(hdr(0x40, 0x80).put32(16, 0xffffffff).put32(20, p.u32(20)).put32(24, r.cmdSN).put32(28, r.expStatSN), nil)
}

// whilePonging runs f, and answers NOP-Ins on this connection meanwhile.
func (r *raw) whilePonging(f func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			p, err := r.tryRecv(50 * time.Millisecond)
			var ne net.Error
			switch {
			case errors.As(err, &ne) && ne.Timeout():
			case err != nil || p.op() != 0x20 || p.u32(16) != 0xffffffff:
				r.t.Errorf("got %v (%v), want a NOP-In", p, err)
				return
			default:
				r.nc.Write(hdr(0x40, 0x80).put32(16, 0xffffffff).put32(20, p.u32(20)).put32(24, r.cmdSN).put32(28, r.expStatSN)[:])
			}
		}
	}()
	f()
	close(stop)
	<-stopped
}

// lab is a server with one target, for raw initiators: LUN 0 and LUN 1 take 8
// commands at a time, and those of LUN 1 can be held.
type lab struct {
	srv   *iscsi.Server
	tgt   *iscsi.Target
	addr  string
	meter *target.Meter // in front of LUN 1, which is the same size
}

const (
	labSize = 64 << 20

	// unlimited is the LUN of lab.meter that takes any number of commands.
	unlimited = 5
)

// newLab starts one. set may change the options before.
func newLab(t testing.TB, set func(*iscsi.Options, *iscsi.Target)) *lab {
	t.Helper()
	d := target.New()
	l := &lab{tgt: &iscsi.Target{Name: testTarget, Device: d}}
	for n := range uint16(2) {
		s, err := mem.New(labSize)
		if err != nil {
			t.Fatal(err)
		}
		disk, err := lun.NewDisk(s, lun.DiskOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var u lun.Unit = disk
		if n == 1 {
			l.meter = target.NewMeter(disk)
			u = l.meter
		}
		if _, err := d.Add(n, u, target.Limits{CmdPerLUN: 8}); err != nil {
			t.Fatal(err)
		}
	}
	// The same again, without a limit.
	if _, err := d.Add(unlimited, l.meter, target.Limits{}); err != nil {
		t.Fatal(err)
	}
	o := iscsi.Options{Targets: []*iscsi.Target{l.tgt}}
	if set != nil {
		set(&o, l.tgt)
	}
	srv, err := iscsi.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.srv, l.addr = srv, ln.Addr().String()
	go srv.Serve(ln)
	t.Cleanup(func() {
		l.meter.Release()
		srv.Close()
		for _, u := range d.Units() {
			if n := u.InFlight(); n != 0 {
				t.Errorf("LUN %d has %d commands in flight at the end", u.Number(), n)
			}
		}
	})
	return l
}
