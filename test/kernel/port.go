package kernel

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// clockedPort is the host's end of the port to a guest in virtual time: it knows
// when all that the guest has said is seen to, so that time may pass.
type clockedPort struct {
	*net.UnixConn
	clock *Clock
	raw   syscall.RawConn

	mu   sync.Mutex
	busy bool // bytes that were read are still being looked at

	messages atomic.Int64 // that were read and are not seen to
	turn     atomic.Bool  // the guest's: it has something to do
}

// newClockedPort ties the clock to the port.
func newClockedPort(conn *net.UnixConn, clock *Clock) (*clockedPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &clockedPort{UnixConn: conn, clock: clock, raw: raw}
	p.turn.Store(true)
	clock.mu.Lock()
	defer clock.mu.Unlock()
	clock.settled = p.settled
	return p, nil
}

// Read reads, and means that what was read before has been looked at.
func (p *clockedPort) Read(b []byte) (n int, err error) {
	p.mu.Lock()
	p.busy = false
	p.mu.Unlock()
	p.clock.poke()
	rerr := p.raw.Read(func(fd uintptr) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		n, err = unix.Read(int(fd), b)
		p.busy = n > 0
		return err != unix.EAGAIN && err != unix.EINTR
	})
	switch {
	case rerr != nil:
		return 0, rerr
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// settled tells whether nothing that the guest said is left to see to, and it is
// its turn.
func (p *clockedPort) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy || p.messages.Load() > 0 || !p.turn.Load() {
		return false
	}
	unread := 0
	err := p.raw.Control(func(fd uintptr) { unread, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return err == nil && unread == 0
}

// came says that a message has come, which is to be seen to while the guest waits:
// only then doesn't it matter how long that takes.
func (p *clockedPort) came() {
	if p != nil {
		p.messages.Add(1)
		p.clock.untilWaits()
	}
}

// seen says that a message was seen to.
func (p *clockedPort) seen() {
	if p != nil {
		p.messages.Add(-1)
		p.clock.poke()
	}
}

// setTurn says whether it is the guest's turn, or it waits to be told what to do.
func (p *clockedPort) setTurn(guest bool) {
	if p != nil {
		p.turn.Store(guest)
		p.clock.poke()
	}
}
