package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"lunlab/test/scenario"
)

// progress shows how far a run is: on a terminal in one line that is written
// over, elsewhere in a line for each scenario that has ended.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	start    time.Time
	of, done int
	what     string
	shown    bool
	stop     chan struct{}
	ticker   sync.WaitGroup
}

func newProgress(w io.Writer, of int) *progress {
	p := &progress{w: w, terminal: isTerminal(w), of: of, start: time.Now(), stop: make(chan struct{})}
	if p.terminal {
		p.ticker.Go(p.tick)
	}
	return p
}

// tick keeps the clock in the line going.
func (p *progress) tick() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

func (p *progress) event(e scenario.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case e.Step != nil:
		p.what = e.Step.What
		if e.Step.Scenario != "" {
			p.what = e.Step.Scenario + ": " + p.what
		}
	case e.Result != nil:
		p.done++
		p.erase()
		fmt.Fprintf(p.w, "%3d/%d  %-32s %s (%.1f s)\n", p.done, p.of, e.Result.Name, e.Result.Verdict, e.Result.Elapsed.Seconds())
	}
	p.draw()
}

// logf prints a line that stays.
func (p *progress) logf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	fmt.Fprintf(p.w, format+"\n", args...)
	p.draw()
}

func (p *progress) draw() {
	if p.terminal && p.what != "" {
		fmt.Fprintf(p.w, "\r\x1b[K%3d/%d  %s  %.0f s", p.done, p.of, p.what, time.Since(p.start).Seconds())
		p.shown = true
	}
}

func (p *progress) erase() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// clear takes the line away for good.
func (p *progress) clear() {
	p.mu.Lock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	p.erase()
	p.what = ""
	p.mu.Unlock()
	p.ticker.Wait()
}
