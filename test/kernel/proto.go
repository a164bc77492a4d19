package kernel

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// portName is the virtio-serial port that host and guest talk over, in JSON
// lines: a hostMessage one way, a guestMessage the other, one field set in each.
const portName = "org.lunlab.0"

// portArg on the kernel's command line names a serial line to use in its stead.
const portArg = "lunlab.port="

// maxMessage bounds a line: what a command writes at once comes in one, as base64.
const maxMessage = 1 << 20

type hostMessage struct {
	Run      *runRequest `json:"run,omitempty"`
	Input    []byte      `json:"input,omitempty"` // for the command that runs, if it takes any
	PowerOff bool        `json:"power_off,omitempty"`
}

type runRequest struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"`

	// Talks says that the command takes input; else it has none.
	Talks bool `json:"talks,omitempty"`
}

type guestMessage struct {
	Ready  *Guest      `json:"ready,omitempty"`
	Stdout []byte      `json:"stdout,omitempty"`
	Stderr []byte      `json:"stderr,omitempty"`
	Exit   *exitStatus `json:"exit,omitempty"`
}

// Guest is what a guest says of itself once it is up.
type Guest struct {
	Release string  `json:"release"` // uname -r
	Version string  `json:"version"` // uname -v
	Uptime  float64 `json:"uptime"`  // seconds from the kernel's start to here

	// Modules holds, for each module that did not load, the reason.
	Modules map[string]string `json:"modules,omitempty"`
}

type exitStatus struct {
	Code  int    `json:"code"`            // 128+n for signal n, as in a shell
	Error string `json:"error,omitempty"` // it could not be started
}

// messageWriter writes JSON lines, one whole line a Write.
type messageWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (m *messageWriter) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("kernel: message: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err = m.w.Write(append(b, '\n'))
	return err
}
