package nbd

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"lunlab/lun/store"
)

// Numbers of the transmission phase.
const (
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef

	cmdRead        = 0
	cmdWrite       = 1
	cmdDisconnect  = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdWriteZeroes = 6
	cmdBlockStatus = 7

	cmdFlagFUA    = 1 << 0
	cmdFlagNoHole = 1 << 1
	cmdFlagReqOne = 1 << 3

	chunkDone        = 1 << 0 // flag of the last chunk
	chunkNone        = 0
	chunkData        = 1
	chunkHole        = 2
	chunkBlockStatus = 5

	stateHole = 1 << 0
	stateZero = 1 << 1
)

// call is a request on its way.
type call struct {
	command, flags uint16
	off, n         int64
	data           []byte // what is written, or room for what is read

	// The answer, when done is closed.
	err    error
	extent int64 // of BLOCK_STATUS, with its state
	state  uint32
	got    int64 // bytes of data that came
	done   chan struct{}
}

// conn is a connection in the transmission phase. Its goroutine reads replies
// until the connection ends, and close waits for it.
type conn struct {
	c     net.Conn
	e     export
	ended chan struct{}

	sending sync.Mutex // held over the writing of a request

	mu    sync.Mutex
	calls map[uint64]*call
	last  uint64 // cookie
	err   error  // why there is no more use of it

	timeout time.Duration
	log     *unflushed
}

func newConn(nc net.Conn, e export, timeout time.Duration, log *unflushed) *conn {
	c := &conn{c: nc, e: e, ended: make(chan struct{}), calls: map[uint64]*call{}, timeout: timeout, log: log}
	go func() {
		defer close(c.ended)
		err := c.receive(bufio.NewReaderSize(nc, 64<<10))
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		c.end(lost(err))
		c.mu.Lock()
		defer c.mu.Unlock()
		for cookie, k := range c.calls {
			k.err = c.err
			close(k.done)
			delete(c.calls, cookie)
		}
	}()
	return c
}

// lostError is why a connection was lost.
type lostError struct{ why error }

func (e lostError) Error() string { return fmt.Sprintf("nbd: connection lost: %v", e.why) }

// Unwrap makes it the I/O error that it is for who uses the store.
func (e lostError) Unwrap() []error { return []error{e.why, syscall.EIO} }

func lost(err error) error { return lostError{err} }

func isLost(err error) bool {
	var l lostError
	return errors.As(err, &l)
}

// end makes the connection useless. The reader, whose buffers the calls are,
// ends them when it is done with them. From then on no answer counts.
func (c *conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.log.lose(err)
	}
	c.c.Close()
}

func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// close takes leave, if there is still someone to take it of.
func (c *conn) close(reason error) error {
	c.mu.Lock()
	was := c.err
	if c.err == nil || !errors.Is(c.err, store.ErrClosed) {
		c.err = reason
	}
	c.mu.Unlock()
	if errors.Is(was, store.ErrClosed) {
		return was
	}
	if was == nil {
		c.sending.Lock()
		c.c.Write(request(&call{command: cmdDisconnect}, 0))
		c.sending.Unlock()
	}
	c.end(reason)
	<-c.ended
	return nil
}

func request(k *call, cookie uint64) []byte {
	b := make([]byte, 0, 28)
	b = binary.BigEndian.AppendUint32(b, magicRequest)
	b = binary.BigEndian.AppendUint16(b, k.flags)
	b = binary.BigEndian.AppendUint16(b, k.command)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(k.off))
	return binary.BigEndian.AppendUint32(b, uint32(k.n))
}

// do sends a request and waits for its answer.
func (c *conn) do(k *call) error {
	k.done = make(chan struct{})
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		return err
	}
	c.last++
	cookie := c.last
	c.calls[cookie] = k
	c.mu.Unlock()
	watch := time.AfterFunc(c.timeout, func() { c.end(lost(fmt.Errorf("no answer within %v", c.timeout))) })
	defer watch.Stop()
	bufs := net.Buffers{request(k, cookie)}
	if k.command == cmdWrite {
		bufs = append(bufs, k.data)
	}
	c.sending.Lock()
	_, err := bufs.WriteTo(c.c)
	c.sending.Unlock()
	if err != nil {
		c.end(lost(err))
	}
	<-k.done
	return k.err
}

// find returns the call that a reply is for. The reader owns its answer until
// finish.
func (c *conn) find(cookie uint64) (*call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.calls[cookie]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("a reply to a request that wasn't made (cookie %#x)", cookie)
}

// finish ends a call.
func (c *conn) finish(cookie uint64, k *call) {
	switch {
	case k.err != nil:
	case k.command == cmdRead && k.got != k.n:
		k.err = fmt.Errorf("nbd: %d bytes came of %d: %w", k.got, k.n, syscall.EIO)
	case k.command == cmdBlockStatus && k.extent == 0:
		k.err = fmt.Errorf("nbd: no block status came: %w", syscall.EIO)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.err == nil && c.err != nil {
		k.err = c.err
	}
	if k.err == nil && (k.command == cmdWrite || k.command == cmdWriteZeroes || k.command == cmdTrim) && k.flags&cmdFlagFUA == 0 {
		c.log.wrote()
	}
	if c.calls[cookie] == k {
		delete(c.calls, cookie)
		close(k.done)
	}
}

// serverError is an error that the server reports: its numbers are Linux's.
func serverError(code uint32) error {
	switch e := syscall.Errno(code); e {
	case syscall.EPERM, syscall.EIO, syscall.ENOMEM, syscall.EINVAL, syscall.ENOSPC, syscall.EOVERFLOW, syscall.ENOTSUP, syscall.ESHUTDOWN:
		return fmt.Errorf("nbd: the server reports: %w", e)
	}
	return fmt.Errorf("nbd: the server reports error %d: %w", code, syscall.EIO)
}

// receive reads replies until something is wrong.
func (c *conn) receive(r *bufio.Reader) error {
	for {
		var magic [4]byte
		if _, err := io.ReadFull(r, magic[:]); err != nil {
			return err
		}
		var err error
		switch m := binary.BigEndian.Uint32(magic[:]); m {
		case magicSimple:
			err = c.simple(r)
		case magicStructured:
			err = c.chunk(r)
		default:
			err = fmt.Errorf("a reply begins with %#x", m)
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) simple(r *bufio.Reader) error {
	var head [12]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	cookie := binary.BigEndian.Uint64(head[4:])
	k, err := c.find(cookie)
	if err != nil {
		return err
	}
	if code := binary.BigEndian.Uint32(head[:]); code != 0 {
		k.err = serverError(code)
	} else if k.command == cmdRead {
		if c.e.structured {
			return errors.New("a simple reply to a read, where structured ones were agreed on")
		}
		if _, err := io.ReadFull(r, k.data); err != nil {
			return err
		}
		k.got = k.n
	}
	c.finish(cookie, k)
	return nil
}

// maxErrorText bounds what comes along with an error.
const maxErrorText = 8 << 10

// chunk reads a chunk of a structured reply.
func (c *conn) chunk(r *bufio.Reader) error {
	var head [16]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	flags, kind := binary.BigEndian.Uint16(head[:]), binary.BigEndian.Uint16(head[2:])
	cookie, n := binary.BigEndian.Uint64(head[4:]), int64(binary.BigEndian.Uint32(head[12:]))
	k, err := c.find(cookie)
	if err != nil {
		return err
	}
	switch {
	case kind == chunkNone && n == 0:
	case kind == chunkData && n >= 8 && k.command == cmdRead:
		err = k.readData(r, n-8)
	case kind == chunkHole && n == 12 && k.command == cmdRead:
		err = k.readHole(r)
	case kind == chunkBlockStatus && n >= 12 && n%8 == 4 && n <= maxErrorText && k.command == cmdBlockStatus:
		err = k.readStatus(r, n, c.e.context)
	case kind&(1<<15) != 0 && n >= 6 && n <= maxErrorText:
		err = k.readError(r, n)
	default:
		err = fmt.Errorf("a chunk of type %d with %d bytes doesn't answer command %d", kind, n, k.command)
	}
	if err == nil && flags&chunkDone != 0 {
		c.finish(cookie, k)
	}
	return err
}

// room returns the part of the call's data that a chunk is for.
func (k *call) room(off uint64, n int64) ([]byte, error) {
	at := off - uint64(k.off)
	if off < uint64(k.off) || n < 0 || at > uint64(k.n) || uint64(n) > uint64(k.n)-at {
		return nil, fmt.Errorf("%d bytes at %d came for a read of %d at %d", n, off, k.n, k.off)
	}
	// Pieces that overlap would make up the sum without filling the room.
	if k.got += n; k.got > k.n {
		return nil, errors.New("more bytes came than were asked for")
	}
	return k.data[at:][:n], nil
}

func (k *call) readData(r io.Reader, n int64) error {
	var off [8]byte
	if _, err := io.ReadFull(r, off[:]); err != nil {
		return err
	}
	p, err := k.room(binary.BigEndian.Uint64(off[:]), n)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(r, p)
	return err
}

func (k *call) readHole(r io.Reader) error {
	var b [12]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	p, err := k.room(binary.BigEndian.Uint64(b[:]), int64(binary.BigEndian.Uint32(b[8:])))
	if err != nil {
		return err
	}
	clear(p)
	return nil
}

// readStatus takes the first descriptor of base:allocation.
func (k *call) readStatus(r io.Reader, n int64, context uint32) error {
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(b) == context && k.extent == 0 {
		k.extent, k.state = int64(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint32(b[8:])
	}
	return nil
}

func (k *call) readError(r io.Reader, n int64) error {
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	if k.err == nil {
		k.err = serverError(binary.BigEndian.Uint32(b))
	}
	return nil
}
