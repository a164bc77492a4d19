package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// message is a message with what came along.
type message struct {
	header
	payload []byte
	fds     []int
}

// fd takes over the message's only file descriptor.
func (m *message) fd() (int, error) {
	if len(m.fds) != 1 {
		return -1, fmt.Errorf("%w: %d file descriptors, want one", errMessage, len(m.fds))
	}
	fd := m.fds[0]
	m.fds = nil
	return fd, nil
}

// close closes the file descriptors that nobody took over.
func (m *message) close() {
	for _, fd := range m.fds {
		unix.Close(fd)
	}
	m.fds = nil
}

// receive reads a message. It is to be closed, also when there is an error.
func receive(c *net.UnixConn, m *message) error {
	var b [headerSize]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	for n := 0; n < headerSize; {
		k, on, flags, _, err := c.ReadMsgUnix(b[n:], oob)
		fds, ferr := parseFDs(oob[:on])
		m.fds = append(m.fds, fds...)
		switch {
		case err == nil && k == 0 && n == 0:
			return io.EOF
		case err == nil && k == 0:
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case ferr != nil:
			return ferr
		case flags&unix.MSG_CTRUNC != 0 || len(m.fds) > maxFDs:
			return fmt.Errorf("%w: more than %d file descriptors", errMessage, maxFDs)
		}
		n += k
	}
	if err := m.decode(b[:]); err != nil {
		return err
	}
	m.payload = make([]byte, m.size)
	_, err := io.ReadFull(c, m.payload)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func parseFDs(oob []byte) (fds []int, err error) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Header.Level != unix.SOL_SOCKET || list[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, more...)
	}
	return fds, nil
}
