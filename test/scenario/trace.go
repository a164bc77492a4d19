package scenario

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Trace is a part of what the kernel's tracepoints of the block layer and the SCSI
// core said during a scenario, in the text of tracefs. The parts come one after
// another, before the result.
type Trace struct {
	Scenario string `json:"scenario"`
	First    bool   `json:"first,omitempty"`
	Text     []byte `json:"text"`
}

// The ring buffer of a trace: the last events are kept, so much of each CPU.
const (
	traceFS  = "/sys/kernel/tracing"
	traceKiB = 1024

	maxTracePart = 64 << 10
)

// trace begins to trace; the function that it returns ends that and emits what there
// is. The kernel's own buffer is left alone.
func (r *run) trace() (end func() error, err error) {
	if !r.Trace {
		return func() error { return nil }, nil
	}
	dir := filepath.Join(traceFS, "instances", fmt.Sprintf("lunlab-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("the kernel has no tracefs with instances: CONFIG_EVENT_TRACING=y, and tracefs mounted on " + traceFS)
		}
		return nil, fmt.Errorf("trace: %w", err)
	}
	err = writeFile(dir+"/buffer_size_kb", fmt.Sprint(traceKiB))
	for _, events := range []string{"block", "scsi"} {
		err = errors.Join(err, writeFile(filepath.Join(dir, "events", events, "enable"), "1"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("trace: %w", err), os.Remove(dir))
	}
	return func() error {
		err := errors.Join(writeFile(dir+"/tracing_on", "0"), r.emitTrace(dir+"/trace"))
		return errors.Join(err, os.Remove(dir))
	}, nil
}

// emitTrace emits a file of tracefs.
func (r *run) emitTrace(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, maxTracePart)
	for first := true; ; first = false {
		n, err := io.ReadFull(f, b)
		if n > 0 || first {
			r.emit(Event{Trace: &Trace{Scenario: r.Name, First: first, Text: b[:n]}})
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
