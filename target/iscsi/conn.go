package iscsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"lunlab/target/iscsi/pdu"
)

const (
	// loginInput is the input buffer before full feature phase: a login PDU.
	loginInput = pdu.BHSLen + pdu.MaxAHSLength + 8192 + 8

	// fullInput is the input buffer afterwards. A PDU that is longer gets a
	// longer one for its time.
	fullInput = 64 << 10

	// arenaSize is the room in which the reader gathers its answers.
	arenaSize = 64<<10 + bufferSlack
)

// conn is one TCP connection. What has no lock belongs to the goroutine that
// serves it.
type conn struct {
	srv  *Server
	nc   net.Conn
	sess *session // from the end of the login on
	cid  uint16
	tag  uint16 // of the portal group

	surplus bool // there were too many already: it is told so

	in      input
	digests digests
	params  Params
	out     output

	// damage counts the header digest errors in a row.
	damage int

	// arena is the reader's own buffer for answers, used up to arenaOff.
	arena    *buffer
	arenaOff int

	mu      sync.Mutex
	waiting map[uint32]*command // for data, by initiator task tag
	late    lateTags
	nextTTT uint32

	lostAt time.Time // guarded by the session's lock

	step atomic.Uint32 // the initiator's MaxRecvDataSegmentLength

	exchangeMu sync.Mutex
	exchange   exchange

	began   time.Time
	phase   atomic.Int32
	pinged  atomic.Int64 // Unix nanoseconds, 0 when no answer is due
	closing atomic.Bool  // a logout was answered: nothing more is read

	deaf chan struct{} // closed when nothing more is read

	heardOf atomic.Uint32 // ExpStatSN, while a fence stands
}

// Phases of a connection.
const (
	phaseLogin = iota
	phaseFull
)

func newConn(s *Server, nc net.Conn, tag uint16) *conn {
	c := &conn{srv: s, nc: nc, tag: tag, params: defaultParams(), began: time.Now(), waiting: map[uint32]*command{}, deaf: make(chan struct{})}
	c.in.nc, c.in.buf, c.in.dry = nc, make([]byte, loginInput), c.dry
	c.out.init(nc, c.stamp)
	c.in.heard.Store(c.began.UnixNano())
	return c
}

// errLoggedOut ends a connection in order.
var errLoggedOut = errors.New("logged out")

// errProtocol ends a connection whose bytes can't be made sense of.
var errProtocol = errors.New("iscsi: protocol error")

func (c *conn) serve() {
	err := c.login()
	if err == nil {
		c.in.resize(fullInput)
		c.step.Store(c.params.MaxRecvDataSegmentLength)
		c.phase.Store(phaseFull)
		c.srv.log.Info("login", "session", c.sess.String(), "tsih", c.sess.tsih, "cid", c.cid, "from", c.nc.RemoteAddr())
		err = c.fullFeature()
	}
	close(c.deaf)
	if errors.Is(err, errLoggedOut) {
		c.linger()
	}
	c.nc.Close()
	if errors.Is(err, errLoggedOut) {
		c.out.release()
	}
	c.out.fail(net.ErrClosed)
	c.in.buf = nil // a lost connection stays for a while
	if c.sess != nil {
		c.leaveSession(err)
	} else if err != nil && !errors.Is(err, io.EOF) {
		c.srv.log.Warn("login failed", "from", c.nc.RemoteAddr(), "err", err)
	}
	if c.arena != nil {
		c.arena.drop()
		c.arena = nil
	}
}

// leaveSession takes the connection out of its session, which ends with its
// last one, unless there is something to recover.
func (c *conn) leaveSession(err error) {
	x := c.sess
	orderly := errors.Is(err, errLoggedOut)
	x.mu.Lock()
	mine := x.conns[c.cid] == c
	if mine {
		delete(x.conns, c.cid)
	}
	keep := false
	var given []*conn
	if !orderly && c.phase.Load() == phaseFull {
		keep, given = x.loseLocked(c)
	}
	last := len(x.conns) == 0 && len(x.lost) == 0
	var others []*conn
	for _, o := range x.conns {
		if o.phase.Load() == phaseFull {
			others = append(others, o)
		}
	}
	x.mu.Unlock()
	if !keep {
		c.out.release()
	}
	if last {
		x.close(reasonOf(err))
		return
	}
	x.dropHeld(c)
	if !keep {
		given = append(given, c)
	}
	for _, o := range given {
		x.abandon(o)
	}
	if mine && len(others) > 0 && !orderly {
		// The other connections tell of it (RFC 7143 11.9.1, event 2).
		p := pdu.AsyncMessage{
			AsyncEvent: pdu.AsyncConnectionDrop, Parameter1: c.cid,
			Parameter2: uint16(x.params.DefaultTime2Wait), Parameter3: uint16(x.params.DefaultTime2Retain),
		}
		others[0].send(p.Encode, nil)
		others[0].out.flush(false)
	}
}

func reasonOf(err error) string {
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return "connection closed by the initiator"
	default:
		return err.Error()
	}
}

// linger lets the last answer reach the peer: closing with bytes unread would
// reset the connection and throw it away.
func (c *conn) linger() {
	if c.out.drain() != nil {
		return
	}
	if t, ok := c.nc.(interface{ CloseWrite() error }); ok {
		t.CloseWrite()
	}
	c.nc.SetReadDeadline(time.Now().Add(2 * time.Second))
	for range 64 {
		if _, err := c.nc.Read(c.in.buf); err != nil {
			return
		}
	}
}

// dry is called when the reader has nothing more to do without waiting.
func (c *conn) dry() error {
	if err := c.out.flush(true); err != nil {
		return err
	}
	if c.arena != nil && c.arena.refs.Load() == 1 {
		c.arenaOff = 0
		if len(c.arena.b) > arenaSize {
			c.arena.drop()
			c.arena = nil
		}
	}
	return nil
}

// fullFeature reads and handles PDUs until the connection ends.
func (c *conn) fullFeature() error {
	for !c.closing.Load() {
		if err := c.next(); err != nil {
			if c.closing.Load() {
				return errLoggedOut
			}
			return err
		}
		if c.out.waiting() >= flushAt {
			if err := c.out.flush(true); err != nil {
				return err
			}
		}
	}
	return errLoggedOut
}

// next reads one PDU and handles it.
func (c *conn) next() error {
	hlen := c.digests.headerLen()
	b, err := c.in.view(hlen)
	if err != nil {
		return err
	}
	var h pdu.Header
	if err := h.Decode(b); err != nil {
		return err
	}
	if h.DataSegmentLength > int(c.params.TargetMaxRecvDataSegmentLength) {
		// Longer than was declared: a format error, after which nothing that
		// follows can be trusted (RFC 7143 7.6).
		return fmt.Errorf("%w: %v with %d bytes of data, more than the declared %d", errProtocol, h.Opcode, h.DataSegmentLength, c.params.TargetMaxRecvDataSegmentLength)
	}
	hlen += h.TotalAHSLength
	if h.TotalAHSLength > 0 {
		if b, err = c.in.view(hlen); err != nil {
			return err
		}
	}
	if c.digests.header {
		n := hlen - digestLen
		if checksum(b[:n]) != getDigest(b[n:]) {
			return c.damaged(hlen, h.DataSegmentLength)
		}
		c.damage = 0
		b = b[:n]
	}
	if c.out.keep {
		c.out.acknowledge(u32(b[28:]))
	}
	if c.sess.fence.up.Load() {
		c.noteAck(u32(b[28:]))
	}
	if h.Opcode == pdu.OpDataOut {
		var p pdu.DataOut
		err := p.Decode(b)
		var bhs [pdu.BHSLen]byte
		copy(bhs[:], b)
		c.in.take(hlen)
		if err != nil {
			return c.refuse(pdu.ReasonInvalidField, bhs[:], p.DataSegmentLength)
		}
		return c.dataOut(&p, &bhs)
	}
	return c.request(h, b, hlen)
}

// damaged goes on after a header digest error, if recovery was agreed on: the PDU
// is taken for lost (RFC 7143 7.8). Its lengths are believed once; if they were
// damaged too, the next header is none, and the connection ends.
func (c *conn) damaged(hlen, n int) error {
	if c.damage++; c.damage > 1 || c.sess.params.ErrorRecoveryLevel < 1 {
		return fmt.Errorf("%w: header digest error", errProtocol)
	}
	c.in.take(hlen)
	return c.skipData(n)
}

// request reads the data of a PDU other than Data-Out and hands it on.
func (c *conn) request(h pdu.Header, b []byte, hlen int) error {
	n := h.DataSegmentLength
	total := hlen + n + pdu.Pad(n)
	if c.digests.data && n > 0 {
		total += digestLen
	}
	if total > len(c.in.buf) && h.Opcode == pdu.OpSCSICommand {
		return c.largeCommand(b, hlen, n)
	}
	if total > len(c.in.buf) {
		c.in.resize(total)
		defer c.in.resize(fullInput)
	}
	whole, err := c.in.view(total)
	if err != nil {
		return err
	}
	defer c.in.take(total)
	b = whole[:len(b)]
	data := whole[hlen : hlen+n]
	if c.digests.data && n > 0 && checksum(whole[hlen:total-digestLen]) != getDigest(whole[total-digestLen:]) {
		// The PDU is as good as not sent; its CmdSN stays open for a retry or
		// for the initiator to give up (RFC 7143 7.8).
		c.reject(pdu.ReasonDataDigest, b[:pdu.BHSLen])
		return nil
	}
	switch h.Opcode {
	case pdu.OpSCSICommand:
		return c.scsiCommand(b, data)
	case pdu.OpNOPOut, pdu.OpTaskMgmtRequest, pdu.OpTextRequest, pdu.OpLogoutRequest:
		return c.numbered(h, b, data)
	case pdu.OpSNACKRequest:
		c.snack(b[:pdu.BHSLen])
	case pdu.OpLoginRequest:
		// Not after the login (RFC 7143 11.12).
		c.reject(pdu.ReasonProtocolError, b[:pdu.BHSLen])
	default:
		c.reject(pdu.ReasonNotSupported, b[:pdu.BHSLen])
	}
	return nil
}

// refuse answers a PDU with Reject and skips its data, which hasn't been read.
func (c *conn) refuse(reason pdu.Reason, bhs []byte, n int) error {
	c.reject(reason, bhs)
	return c.skipData(n)
}

// skipData skips n bytes of data and what goes with them.
func (c *conn) skipData(n int) error {
	total := n + pdu.Pad(n)
	if c.digests.data && n > 0 {
		total += digestLen
	}
	return c.in.skip(total)
}

// stamp fills in ExpCmdSN and MaxCmdSN.
func (c *conn) stamp(bhs []byte) {
	if x := c.sess; x != nil {
		put32(bhs[28:], x.exp.Load())
		put32(bhs[32:], x.max.Load())
	}
}

// send queues one PDU whose header encode writes, with data, padded.
func (c *conn) send(encode func(bhs []byte), data []byte) {
	buf, n := c.encode(encode, data)
	c.out.commit(buf, 0, n)
	buf.drop()
}

// encode makes one PDU, in a buffer with one hold.
func (c *conn) encode(encode func(bhs []byte), data []byte) (buf *buffer, end int) {
	if c.sess != nil {
		if buf, end = c.encodeCounted(encode, data); buf != nil {
			return buf, end
		}
	}
	// Such answers are short, and there are as many as maxQueued lets be.
	buf = uncounted(c.digests.wireLen(len(data)))
	return buf, c.fill(buf, encode, data)
}

// encodeCounted is encode for an answer that can be long. There is none if its session
// has no memory for it.
func (c *conn) encodeCounted(encode func(bhs []byte), data []byte) (buf *buffer, end int) {
	if buf = c.sess.memory.get(c.digests.wireLen(len(data))); buf == nil {
		return nil, 0
	}
	return buf, c.fill(buf, encode, data)
}

func (c *conn) fill(buf *buffer, encode func(bhs []byte), data []byte) (end int) {
	encode(buf.b)
	at := c.digests.headerLen()
	copy(buf.b[at:], data)
	return at + c.digests.seal(buf.b[at:], len(data))
}

// reject answers with a Reject PDU (RFC 7143 11.17).
func (c *conn) reject(reason pdu.Reason, bhs []byte) {
	p := pdu.Reject{Reason: reason, DataSegmentLength: pdu.BHSLen}
	c.srv.log.Debug("reject", "from", c.nc.RemoteAddr(), "reason", reason, "pdu", pdu.Opcode(bhs[0]&0x3f))
	c.send(p.Encode, bhs[:pdu.BHSLen])
}

// busy tells whether commands of this connection's session are in flight, or
// answers wait to be written.
func (c *conn) busy() bool {
	if c.out.waiting() > 0 {
		return true
	}
	if c.phase.Load() != phaseFull {
		return false
	}
	c.sess.mu.Lock()
	defer c.sess.mu.Unlock()
	return c.sess.inFlight > 0
}

// watch ends the connection if it has been at something for too long.
func (c *conn) watch(now time.Time) {
	since := func(ns int64) time.Duration { return now.Sub(time.Unix(0, ns)) }
	if w := c.out.writeSince.Load(); w != 0 && since(w) > c.srv.opt.WriteTimeout {
		c.give("the peer doesn't read")
		return
	}
	if c.phase.Load() == phaseLogin {
		if now.Sub(c.began) > c.srv.opt.LoginTimeout {
			c.give("login takes too long")
		}
		return
	}
	if c.closing.Load() {
		return
	}
	c.askForLate(now)
	heard, pinged := c.in.heard.Load(), c.pinged.Load()
	switch {
	case since(heard) < c.srv.opt.PingInterval:
		c.pinged.Store(0)
	case pinged == 0:
		c.pinged.Store(now.UnixNano())
		c.ping()
	case since(pinged) > c.srv.opt.PingInterval:
		c.give("no answer to NOP-In")
	}
}

func (c *conn) give(why string) {
	c.srv.log.Warn("connection dropped", "from", c.nc.RemoteAddr(), "why", why)
	// What is unread stays in the kernel's memory otherwise, for long.
	if t, ok := c.nc.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.nc.Close()
}

// ping sends a NOP-In that asks for an answer (RFC 7143 11.19).
func (c *conn) ping() {
	c.mu.Lock()
	ttt := c.newTTT()
	c.mu.Unlock()
	p := pdu.NOPIn{InitiatorTaskTag: pdu.NoTag, TargetTransferTag: ttt}
	c.send(p.Encode, nil)
	c.flushApart()
}

// flushApart flushes for someone who has others to serve: the output may be stuck behind
// a peer that doesn't read, which the writer's own time-out sees to.
func (c *conn) flushApart() {
	c.srv.wg.Go(func() { c.out.flush(false) })
}

func u32(b []byte) uint32      { return binary.BigEndian.Uint32(b) }
func put32(b []byte, v uint32) { binary.BigEndian.PutUint32(b, v) }

// newTTT makes a target transfer tag. The lock is held.
func (c *conn) newTTT() uint32 {
	c.nextTTT++
	if c.nextTTT == pdu.NoTag {
		c.nextTTT = 0
	}
	return c.nextTTT
}

func isTooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS)
}
