package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// backend is the channel on which the back end sends messages of its own
// (SET_BACKEND_REQ_FD). It is safe for concurrent use.
type backend struct {
	mu   sync.Mutex
	conn *net.UnixConn // nil: there is none, or it is of no use any more
}

const backendVringCall request = 4

// backendPatience bounds how long a front end may leave a message of ours unread
// or unanswered.
const backendPatience = 10 * time.Second

// open makes fd, which it takes over, the channel.
func (b *backend) open(fd int) error {
	f := os.NewFile(uintptr(fd), "backend")
	defer f.Close()
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return fmt.Errorf("%w: the back end's channel isn't a stream socket", errMessage)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("the back end's channel: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return fmt.Errorf("%w: the back end's channel isn't a unix socket", errMessage)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closeLocked()
	b.conn = conn
	return nil
}

func (b *backend) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closeLocked()
}

func (b *backend) closeLocked() {
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
}

// call tells the front end that buffers of a virtqueue were used. With acked it
// returns when the front end says that it knows. After an error there is no channel
// any more; without one it does nothing.
func (b *backend) call(index uint32, acked bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil {
		return nil
	}
	err := b.ask(header{request: backendVringCall}, vringState{index: index}.append(nil), acked)
	if err != nil {
		b.closeLocked()
		return fmt.Errorf("the back end's channel: call of virtqueue %d: %w", index, err)
	}
	return nil
}

func (b *backend) ask(h header, payload []byte, acked bool) error {
	if err := b.conn.SetDeadline(time.Now().Add(backendPatience)); err != nil {
		return err
	}
	if acked {
		h.flags = flagNeedReply
	}
	if _, err := b.conn.Write(h.message(payload)); err != nil || !acked {
		return err
	}
	var reply [headerSize + 8]byte
	if _, err := io.ReadFull(b.conn, reply[:]); err != nil {
		return err
	}
	return decodeAck(reply[:], h.request)
}

// decodeAck reads how a front end acknowledges a request of ours.
func decodeAck(b []byte, of request) error {
	var h header
	if err := h.parse(b); err != nil {
		return err
	}
	if h.request != of || h.flags&flagReply == 0 || h.size != 8 {
		return fmt.Errorf("%w: request %d with flags %#x and %d bytes acknowledges nothing", errMessage, h.request, h.flags, h.size)
	}
	v, err := decodeU64(b[headerSize:])
	if err == nil && v != 0 {
		err = errors.New("the front end refused it")
	}
	return err
}
