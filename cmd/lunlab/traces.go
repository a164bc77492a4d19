package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lunlab/test/scenario"
)

// maxTrace bounds a scenario's trace, in bytes.
const maxTrace = 64 << 20

// traces keeps what the tracepoints said, in a file for each scenario and run.
type traces struct {
	dir  string
	runs map[string]int // how often a scenario has begun
	file *os.File
	left int
	err  error // the first
}

// newTraces makes the folder. An empty name is none: nothing is kept.
func newTraces(dir string) (*traces, error) {
	if dir == "" {
		return nil, nil
	}
	return &traces{dir: dir, runs: map[string]int{}}, os.MkdirAll(dir, 0o755)
}

// event keeps a part of a trace: an event of [scenario.Run].
func (t *traces) event(e scenario.Event) {
	if t == nil || e.Trace == nil {
		return
	}
	if e.Trace.First {
		t.close()
		t.runs[e.Trace.Scenario]++
		name := "trace-" + strings.ReplaceAll(e.Trace.Scenario, "/", "-")
		if n := t.runs[e.Trace.Scenario]; n > 1 {
			name += fmt.Sprintf(".%d", n)
		}
		var err error
		t.file, err = os.Create(filepath.Join(t.dir, name+".txt"))
		t.note(err)
		t.left = maxTrace
	}
	if t.file == nil {
		return
	}
	text := e.Trace.Text[:min(len(e.Trace.Text), t.left)]
	t.left -= len(text)
	_, err := t.file.Write(text)
	t.note(err)
}

func (t *traces) note(err error) {
	if t.err == nil {
		t.err = err
	}
}

// close ends the last file, and returns what could not be kept.
func (t *traces) close() error {
	if t == nil {
		return nil
	}
	if t.file != nil {
		t.note(t.file.Close())
		t.file = nil
	}
	return t.err
}
