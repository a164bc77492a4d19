package scenario

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"lunlab/lun"
	"lunlab/lun/fault"
)

// ledger is a unit in front of another that knows which commands it has not
// answered yet.
type ledger struct {
	lun.Unit
	unit int // its logical unit number

	mu   sync.Mutex
	open map[*lun.Command]entry
}

type entry struct {
	since  time.Time
	cdb    [16]byte
	length int
}

// ledgers are those of the LUNs that there are.
type ledgers struct {
	mu  sync.Mutex
	all []*ledger
}

// add puts a ledger in front of a unit.
func (a *ledgers) add(u lun.Unit, number int) *ledger {
	l := &ledger{Unit: u, unit: number, open: map[*lun.Command]entry{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, l)
	return l
}

func (a *ledgers) remove(l *ledger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = slices.DeleteFunc(a.all, func(o *ledger) bool { return o == l })
}

// unanswered returns the commands that no unit has answered, the oldest first.
func (a *ledgers) unanswered() []Unanswered {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Unanswered
	for _, l := range a.all {
		out = l.unanswered(out)
	}
	slices.SortFunc(out, func(a, b Unanswered) int { return cmp.Compare(b.Age, a.Age) })
	return out
}

// Unwrap returns the unit behind the ledger.
func (l *ledger) Unwrap() lun.Unit { return l.Unit }

// Execute has the command in the ledger while the unit executes it.
func (l *ledger) Execute(c *lun.Command) {
	e := entry{since: time.Now(), length: min(len(c.CDB), 16)}
	copy(e.cdb[:], c.CDB)
	l.mu.Lock()
	l.open[c] = e
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.open, c)
		l.mu.Unlock()
	}()
	l.Unit.Execute(c)
}

// Unanswered is a command that the target has and has not answered.
type Unanswered struct {
	LUN     int           `json:"lun"`
	Command string        `json:"command"`
	LBA     uint64        `json:"lba"`
	Blocks  uint64        `json:"blocks"` // 0 if it names none
	CDB     string        `json:"cdb"`    // in hexadecimal, the first 16 bytes of it
	Age     time.Duration `json:"age_ns"`
	// Tags are those of the kernel's commands with this CDB, more than one if it has
	// sent the same twice; none if it has none in flight, or doesn't show it.
	Tags []int `json:"tags,omitempty"`
}

// unanswered appends the commands in the ledger.
func (l *ledger) unanswered(out []Unanswered) []Unanswered {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		cdb := e.cdb[:e.length]
		u := Unanswered{LUN: l.unit, Command: commandName(cdb), CDB: hex.EncodeToString(cdb), Age: now.Sub(e.since)}
		if b, ok := fault.BlocksOf(&lun.Command{CDB: cdb}); ok {
			u.LBA, u.Blocks = b.First, b.Last-b.First+1
		}
		out = append(out, u)
	}
	return out
}

// commandName is what the standards call a command.
func commandName(cdb []byte) string {
	if len(cdb) == 0 {
		return "no CDB"
	}
	action := lun.ServiceAction(cdb)
	for _, o := range operations() {
		if o.Code == cdb[0] && (o.Action < 0 || o.Action == action) {
			return o.Name
		}
	}
	return fmt.Sprintf("operation code %#02x", cdb[0])
}

var operations = sync.OnceValue(lun.Operations)
