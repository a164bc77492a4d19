package sim

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// traceKept is how many entries are kept from a trace's beginning, and how many
// from its end.
const traceKept = 100

// Trace is what happened in a run. Entries that differ only in their numbers,
// one after the other, are one.
type Trace struct {
	Entries []Entry `json:"entries"`
	// Left is how many are left out, after the first 100.
	Left int `json:"left,omitempty"`
}

// Entry is an event, or several of a kind.
type Entry struct {
	At   time.Duration `json:"at_ns"`
	Who  string        `json:"who"`
	What string        `json:"what"`
	// N is how many there were; Last is the last of them.
	N    int    `json:"n"`
	Last string `json:"last,omitempty"`
}

func (tr *Trace) add(at time.Duration, who, what string) {
	if n := len(tr.Entries); n > 0 {
		if e := &tr.Entries[n-1]; sameShape(e.Who, who) && sameShape(e.What, what) {
			e.N++
			e.Last = what
			return
		}
	}
	if len(tr.Entries) == 2*traceKept {
		tr.Entries = slices.Delete(tr.Entries, traceKept, traceKept+1)
		tr.Left++
	}
	tr.Entries = append(tr.Entries, Entry{At: at, Who: who, What: what, N: 1})
}

// sameShape compares texts without their numbers.
func sameShape(a, b string) bool {
	i, j := 0, 0
	for {
		for i < len(a) && a[i] >= '0' && a[i] <= '9' {
			i++
		}
		for j < len(b) && b[j] >= '0' && b[j] <= '9' {
			j++
		}
		if i == len(a) || j == len(b) {
			return i == len(a) && j == len(b)
		}
		if a[i] != b[j] {
			return false
		}
		i++
		j++
	}
}

// WriteTo writes the trace, an entry a line, times in milliseconds.
func (tr *Trace) WriteTo(w io.Writer) (int64, error) {
	var total int64
	put := func(format string, args ...any) error {
		n, err := fmt.Fprintf(w, format, args...)
		total += int64(n)
		return err
	}
	for i, e := range tr.Entries {
		if i == traceKept && tr.Left > 0 {
			if err := put("%12s  (%d events)\n", "", tr.Left); err != nil {
				return total, err
			}
		}
		if err := put("%12.3f  %-20s %s\n", float64(e.At)/1e6, e.Who, e.What); err != nil {
			return total, err
		}
		if e.N > 2 {
			if err := put("%12s  %-20s (%d more like it)\n", "", "", e.N-2); err != nil {
				return total, err
			}
		}
		if e.N > 1 {
			if err := put("%12s  %-20s %s\n", "", "", e.Last); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}
