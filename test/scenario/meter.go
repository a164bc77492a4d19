package scenario

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// meter counts the commands of a LUN of ours, and holds their completions back: it
// is a *target.Meter where the target runs in the kernel's own machine.
type meter interface {
	Hold()
	Release()
	Holds() bool
	Mark()
	InFlight() int
	Most() int
	Done() uint64
}

// Ask is what a guest wants done to the LUN that the host serves for a scenario.
type Ask struct {
	Scenario string `json:"scenario"`
	Do       string `json:"do,omitempty"` // one of the asks; empty: nothing
}

const (
	askHold    = "hold"
	askRelease = "release"
	askMark    = "mark"
)

// Answer is what is known of the LUN then.
type Answer struct {
	InFlight int    `json:"in_flight"`
	Holds    bool   `json:"holds"`
	Most     int    `json:"most"`
	Done     uint64 `json:"done"`
	Aborted  uint64 `json:"aborted"`
	Error    string `json:"error,omitempty"`
}

// hostMeter is the meter of a LUN that the host serves, seen from the guest.
type hostMeter struct {
	*hostLink
	scenario string
	last     Answer
}

// hostLink asks the host, one thing after the other. After a failure it asks no more.
type hostLink struct {
	mu      sync.Mutex
	emit    func(Event)
	answers *bufio.Reader
	failed  func(error) // is told of what went wrong
	err     error

	// awake keeps time going in small steps while the host is asked: in virtual
	// time, it is the next step that the answer comes at.
	awake bool
}

func newHostLink(emit func(Event), answers io.Reader, awake bool, failed func(error)) *hostLink {
	return &hostLink{emit: emit, answers: bufio.NewReader(answers), awake: awake, failed: failed}
}

// stayAwake does so until stop is called.
func (l *hostLink) stayAwake() (stop func()) {
	if !l.awake {
		return func() {}
	}
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() { close(over) }
}

func (m *hostMeter) ask(do string) Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.last
	}
	defer m.stayAwake()()
	m.emit(Event{Ask: &Ask{Scenario: m.scenario, Do: do}})
	var a Answer
	line, err := m.answers.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		m.err = fmt.Errorf("ask the host: %w", err)
		m.failed(m.err)
		return m.last
	}
	m.last = a
	return a
}

func (m *hostMeter) Hold()         { m.ask(askHold) }
func (m *hostMeter) Release()      { m.ask(askRelease) }
func (m *hostMeter) Holds() bool   { return m.ask("").Holds }
func (m *hostMeter) Mark()         { m.ask(askMark) }
func (m *hostMeter) InFlight() int { return m.ask("").InFlight }
func (m *hostMeter) Most() int     { return m.ask("").Most }
func (m *hostMeter) Done() uint64  { return m.ask("").Done }
