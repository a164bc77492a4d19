package kernel

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"sync"
)

// Complaint is something that a kernel said on its console which a healthy one
// does not say.
type Complaint struct {
	// Kind is "panic", "oops", "warning", "hung task", "soft lockup",
	// "hard lockup", "workqueue lockup", "RCU stall", "lockdep", "atomic
	// context", "sanitizer" or "list corruption".
	Kind string `json:"kind"`

	// Line is the console line that it was known by.
	Line string `json:"line"`
}

// complaints are looked for in this order; the first that fits names the line.
var complaints = []struct {
	kind string
	re   *regexp.Regexp
}{
	{"panic", regexp.MustCompile(`Kernel panic - not syncing`)},
	{"sanitizer", regexp.MustCompile(`BUG: (KASAN|KCSAN|KFENCE|KMSAN)|UBSAN:`)},
	{"workqueue lockup", regexp.MustCompile(`BUG: workqueue lockup`)},
	{"atomic context", regexp.MustCompile(`BUG: (sleeping function called from invalid context|scheduling while atomic)`)},
	{"soft lockup", regexp.MustCompile(`soft lockup - CPU#`)},
	{"hard lockup", regexp.MustCompile(`hard LOCKUP`)},
	{"RCU stall", regexp.MustCompile(`rcu.*(detected stalls|self-detected stall|detected expedited stalls)`)},
	{"hung task", regexp.MustCompile(`INFO: task .* blocked for more than`)},
	{"oops", regexp.MustCompile(`BUG: |Oops: |general protection fault|kernel BUG at|unable to handle`)},
	{"list corruption", regexp.MustCompile(`list_(add|del) corruption|refcount_t: `)},
	{"warning", regexp.MustCompile(`WARNING: CPU: |WARNING: (.* at )?\S+:\d+`)},
	{"lockdep", regexp.MustCompile(`WARNING: (possible|suspicious|inconsistent|bad unlock|held lock|lock held|Nested lock)`)},
}

// FindComplaint says whether a line of a kernel's log is a complaint.
func FindComplaint(line string) (Complaint, bool) {
	for _, k := range complaints {
		if k.re.MatchString(line) {
			return Complaint{Kind: k.kind, Line: strings.TrimSpace(line)}, true
		}
	}
	return Complaint{}, false
}

// MaxComplaints is how many complaints of a guest are kept; a kernel that
// doesn't stop complaining has said enough by then.
const MaxComplaints = 100

// consoleTail is how many of a console's last lines are kept for messages.
const consoleTail = 60

// console keeps the end of a guest's console and picks out complaints.
type console struct {
	mu         sync.Mutex
	log        io.Writer // the whole, may be nil
	part       []byte    // a line that has no end yet
	tail       []string
	complaints []Complaint
}

// maxLine bounds a console line; a guest that never ends one is cut there.
const maxLine = 4096

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.log != nil {
		c.log.Write(b)
	}
	n := len(b)
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte("\n"))
		c.part = append(c.part, line...)
		b = rest
		if !ended && len(c.part) < maxLine {
			break
		}
		c.line(strings.TrimRight(string(c.part), "\r"))
		c.part = c.part[:0]
	}
	return n, nil
}

func (c *console) line(s string) {
	if len(c.tail) == consoleTail {
		c.tail = append(c.tail[:0], c.tail[1:]...)
	}
	c.tail = append(c.tail, s)
	if k, ok := FindComplaint(s); ok && len(c.complaints) < MaxComplaints {
		c.complaints = append(c.complaints, k)
	}
}

// Tail returns the last lines, at most n.
func (c *console) Tail(n int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tail
	if len(c.part) > 0 {
		t = append(t[:len(t):len(t)], string(c.part))
	}
	return append([]string(nil), t[max(0, len(t)-n):]...)
}

// Complaints returns what was found so far.
func (c *console) Complaints() []Complaint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Complaint(nil), c.complaints...)
}
