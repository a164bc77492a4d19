package scenario

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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
	err := k.each(func(r record) {
		if c, ok := kernel.FindComplaint(r.text); ok && len(out) < kernel.MaxComplaints {
			out = append(out, c)
		}
	})
	return out, err
}

// record is one of the log.
type record struct {
	at   time.Duration // since the kernel's start
	text string
}

// each calls f with the records that came since the last call.
func (k *kmsg) each(f func(record)) error {
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
		// "priority,sequence,microseconds,flags;text\n key=value..."
		head, text, _ := strings.Cut(string(b[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		r := record{text: text}
		if fields := strings.Split(head, ","); len(fields) > 2 {
			us, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil {
				return fmt.Errorf("/dev/kmsg: a record that begins %q: %w", head, err)
			}
			r.at = time.Duration(us) * time.Microsecond
		}
		f(r)
	}
}

func (k *kmsg) close() error { return unix.Close(k.fd) }
