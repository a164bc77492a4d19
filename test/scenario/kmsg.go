package scenario

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"lunlab/test/kernel"
)

// kmsg reads the running kernel's log from where it was when it was opened.
type kmsg struct{ fd int }

func openKmsg() (*kmsg, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/kmsg: %w", err)
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("/dev/kmsg: %w", err)
	}
	return &kmsg{fd: fd}, nil
}

// complaints returns what the kernel has complained of since the last call.
func (k *kmsg) complaints() ([]kernel.Complaint, error) {
	var out []kernel.Complaint
	err := k.each(func(text string) {
		if c, ok := kernel.FindComplaint(text); ok && len(out) < kernel.MaxComplaints {
			out = append(out, c)
		}
	})
	return out, err
}

// each calls f with the lines that came since the last call.
func (k *kmsg) each(f func(text string)) error {
	b := make([]byte, 8192) // a record is never longer
	for {
		n, err := unix.Read(k.fd, b)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue // records were overwritten before they were read
		case err != nil:
			return fmt.Errorf("/dev/kmsg: %w", err)
		}
		// "priority,sequence,time,flags;text\n key=value..."
		_, text, _ := strings.Cut(string(b[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		f(text)
	}
}

func (k *kmsg) close() error { return unix.Close(k.fd) }
