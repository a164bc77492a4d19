package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"lunlab/lun"
	"lunlab/target"
)

// session is a front end's connection, and the device as that has set it up. The
// goroutine in serve owns what isn't said to be anybody else's.
type session struct {
	dev   *Device
	conn  *net.UnixConn
	nexus *target.Nexus
	rings []*ring

	events     events
	work       sync.WaitGroup // goroutines that execute commands and functions
	features   atomic.Uint64
	eventIndex atomic.Bool
	needsReset atomic.Bool // a virtqueue is broken

	// resetting counts resets of units that go on: what is aborted meanwhile was so
	// by one of them.
	resetting atomic.Int32

	backend backend
	acked   atomic.Bool // the front end acknowledges calls that are messages

	memory   *memory
	inflight *inflight
	protocol uint64
	status   byte
}

// Protocol features.
const (
	protocolMQ        = 1 << 0
	protocolReplyAck  = 1 << 3
	protocolBackend   = 1 << 5
	protocolConfig    = 1 << 9
	protocolInflight  = 1 << 12
	protocolReset     = 1 << 13
	protocolInBand    = 1 << 14 // with [Options.Clock]
	protocolMemSlots  = 1 << 15
	protocolStatus    = 1 << 16
	protocolSupported = protocolMQ | protocolReplyAck | protocolBackend | protocolConfig | protocolInflight |
		protocolReset | protocolMemSlots | protocolStatus

	featuresSupported = featureInOut | featureHotplug | featureChange | featureT10PI |
		featureIndirect | featureEventIdx | featureProtocol | featureVersion1

	// Features from here on change what virtqueues look like, or their addresses.
	// Others that nobody offered a front end may leave in.
	featureStrict = 33

	statusNeedsReset = 0x40
)

func newSession(d *Device, c *net.UnixConn) *session {
	s := &session{dev: d, conn: c}
	s.nexus = d.opts.Target.Open(lun.Nexus{TargetPort: 1, Functions: functions, Name: "vhost-user," + d.opts.Name}, nil)
	for i := range firstRequests + d.opts.Queues {
		s.rings = append(s.rings, newRing(s, i))
	}
	return s
}

func (s *session) requestRings() []*ring { return s.rings[firstRequests:] }

// serve handles messages until the front end is gone. It returns nil if that went
// in order.
func (s *session) serve() error {
	for {
		var m message
		err := receive(s.conn, &m)
		if err == nil {
			err = s.answer(&m)
		}
		m.close()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// answer does what a message says and replies.
func (s *session) answer(m *message) error {
	payload, fd, err := s.handle(m)
	ack := s.protocol&protocolReplyAck != 0 && m.flags&flagNeedReply != 0
	switch {
	case err != nil && ack && payload == nil:
		s.dev.log.Error("message refused", "device", s.dev.opts.Name, "request", int(m.request), "err", err)
		payload = le.AppendUint64(nil, 1)
	case err != nil:
		return fmt.Errorf("request %d: %w", m.request, err)
	case payload == nil && ack:
		payload = le.AppendUint64(nil, 0)
	case payload == nil:
		return nil
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
		defer unix.Close(fd)
	}
	_, _, err = s.conn.WriteMsgUnix(m.reply(payload), oob, nil)
	return err
}

// handle does what a message says. It returns the payload of the reply, nil if it
// has none but an acknowledgement, and a file descriptor to go along or -1.
func (s *session) handle(m *message) (reply []byte, fd int, err error) {
	u64 := func(v uint64) ([]byte, int, error) { return le.AppendUint64(nil, v), -1, nil }
	switch m.request {
	case reqGetFeatures:
		return u64(featuresSupported)
	case reqGetProtocolFeatures:
		return u64(s.offered())
	case reqGetQueueNum:
		return u64(uint64(len(s.rings)))
	case reqGetMaxMemSlots:
		return u64(maxRegions)
	case reqGetStatus:
		v := uint64(s.status)
		if s.needsReset.Load() {
			v |= statusNeedsReset
		}
		return u64(v)
	case reqGetVringBase:
		reply, err = s.getVringBase(m)
		return reply, -1, err
	case reqGetConfig:
		reply, err = s.getConfig(m)
		return reply, -1, err
	case reqGetInflightFD:
		return s.getInflight(m)
	}
	return nil, -1, s.set(m)
}

// offered are the protocol features that the front end may have.
func (s *session) offered() uint64 {
	if s.dev.opts.Clock != nil {
		return protocolSupported | protocolInBand
	}
	return protocolSupported
}

// set does what a message says that has no reply of its own.
func (s *session) set(m *message) error {
	switch m.request {
	case reqSetOwner:
		return nil
	case reqSetFeatures:
		return s.setFeatures(m)
	case reqSetProtocolFeatures:
		return s.setProtocolFeatures(m)
	case reqSetBackendReqFD:
		fd, err := m.fd()
		if err != nil {
			return err
		}
		return s.backend.open(fd)
	case reqVringKick:
		return s.kickInBand(m)
	case reqResetOwner, reqResetDevice:
		s.reset()
		return nil
	case reqSetStatus:
		v, err := decodeU64(m.payload)
		if err == nil && v == 0 && s.status != 0 {
			s.reset()
		}
		s.status = byte(v)
		return err
	case reqSetConfig:
		return s.setConfig(m)
	case reqSetMemTable:
		return s.setMemTable(m)
	case reqAddMemReg, reqRemMemReg:
		return s.changeMemory(m)
	case reqSetInflightFD:
		return s.setInflight(m)
	case reqSetVringNum, reqSetVringBase, reqSetVringEnable:
		return s.setVring(m)
	case reqSetVringAddr:
		return s.setVringAddr(m)
	case reqSetVringKick, reqSetVringCall, reqSetVringErr:
		return s.setVringFD(m)
	}
	return fmt.Errorf("%w: request %d is unknown", errMessage, m.request)
}

func (s *session) setProtocolFeatures(m *message) error {
	v, err := decodeU64(m.payload)
	if err != nil {
		return err
	}
	if extra := v &^ s.offered(); extra != 0 {
		return fmt.Errorf("protocol features %#x weren't offered", extra)
	}
	s.protocol = v
	const both = protocolInBand | protocolReplyAck
	s.acked.Store(v&both == both)
	return nil
}

func (s *session) setFeatures(m *message) error {
	v, err := decodeU64(m.payload)
	if err != nil {
		return err
	}
	if extra := v &^ featuresSupported >> featureStrict << featureStrict; extra != 0 {
		return fmt.Errorf("features %#x weren't offered", extra)
	}
	v &= featuresSupported
	s.features.Store(v)
	s.eventIndex.Store(v&featureEventIdx != 0)
	for _, r := range s.rings {
		r.change(func() error {
			r.features = v
			r.enabled = r.enabled || v&featureProtocol == 0
			return nil
		})
	}
	return nil
}

// reset makes the device as it was at first, but for its features. What is in
// flight is gone.
func (s *session) reset() {
	for _, r := range s.rings {
		r.silence()
		r.halt()
		r.change(func() error {
			r.enabled, r.addr, r.again, r.next = s.features.Load()&featureProtocol == 0, nil, nil, 0
			return r.locate()
		})
	}
	a := s.nexus.NexusReset()
	a.Wait()
	s.work.Wait()
	s.needsReset.Store(false)
}

func (s *session) config() configSpace {
	o := &s.dev.opts
	return configSpace{queues: uint32(o.Queues), segments: uint32(min(o.QueueSize, 256) - 2), sectors: 0xffff, cmdPerLUN: uint32(o.CmdPerLUN)}
}

func (s *session) getConfig(m *message) ([]byte, error) {
	var c configAccess
	if err := c.decode(m.payload); err != nil {
		return nil, err
	}
	space := s.config().encode()
	if uint64(c.offset)+uint64(c.size) > configSize {
		return configAccess{offset: c.offset, flags: c.flags}.append(nil), nil
	}
	c.data = space[c.offset:][:c.size]
	return c.append(nil), nil
}

// setConfig takes what changes nothing: sizes of CDBs and sense data are fixed.
func (s *session) setConfig(m *message) error {
	var c configAccess
	if err := c.decode(m.payload); err != nil {
		return err
	}
	space := s.config().encode()
	if uint64(c.offset)+uint64(c.size) > configSize || string(space[c.offset:][:c.size]) != string(c.data) {
		return errors.New("sense_size and cdb_size can't be changed")
	}
	return nil
}

// begin counts one more goroutine that executes something, end one less.
func (s *session) begin() {
	s.work.Add(1)
	if c := s.dev.opts.Clock; c != nil {
		c.Begin()
	}
}

func (s *session) end() {
	if c := s.dev.opts.Clock; c != nil {
		c.End()
	}
	s.work.Done()
}

func (s *session) announce(n uint16, c Change) {
	e, ok := eventOf(n, c, s.features.Load())
	if !ok {
		return
	}
	s.events.push(e)
	s.rings[eventQueue].change(func() error { return nil })
}

// close ends the session. With drain, what was taken is completed first.
func (s *session) close(drain bool) {
	for _, r := range s.rings {
		if drain {
			r.stop()
		}
		r.silence()
		r.halt()
	}
	s.conn.Close()
	s.backend.close()
	s.nexus.Close()
	s.work.Wait()
	for _, r := range s.rings {
		r.setFD(&r.call, -1)
		r.setFD(&r.errs, -1)
	}
	if s.memory != nil {
		s.memory.drop()
	}
	if s.inflight != nil {
		s.inflight.close()
	}
}
