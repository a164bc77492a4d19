package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"lunlab/queue"
	"lunlab/test/probe"
)

// Hang is what was found when a scenario's time was over, or its I/O stood still,
// before anything was undone.
type Hang struct {
	// Tasks are those that can't be interrupted, and what the scenario runs.
	Tasks []Task `json:"tasks,omitempty"`
	// Hosts are those that came with the scenario and, in a guest, others with devices.
	Hosts []HungHost `json:"hosts,omitempty"`
	// Kernel are the commands that drivers have, as the probe sees them, and Target
	// those that the target has; the oldest first.
	Kernel []probe.Held `json:"in_flight_in_kernel,omitempty"`
	Target []Unanswered `json:"in_flight_at_target,omitempty"`
	// Unseen says what could not be looked at, or was more than there is room for.
	Unseen []string `json:"unseen,omitempty"`
}

// Task is a thread of the kernel's or of a process.
type Task struct {
	ID    int      `json:"id"`
	Name  string   `json:"name"`
	State string   `json:"state"` // as in ps: "D" can't be interrupted
	Stack []string `json:"stack,omitempty"`
}

// HungHost is a SCSI host, HungDevice one of its devices. Their attributes are
// those of sysfs.
type HungHost struct {
	Name    string       `json:"name"` // "host2"
	Attrs   []Fact       `json:"attributes"`
	Devices []HungDevice `json:"devices,omitempty"`
}

type HungDevice struct {
	Address string `json:"address"`
	Disk    string `json:"disk,omitempty"`
	Attrs   []Fact `json:"attributes"`
	// Queue is what debugfs has of the disk's queue (block/sda/...).
	Queue []Fact `json:"queue,omitempty"`
}

// Bounds of a diagnosis, so that a report has room for it.
const (
	maxTasks    = 48
	maxFrames   = 24
	maxListed   = 64      // commands, of each kind
	maxText     = 8 << 10 // of a file, in bytes
	maxQueues   = 16      // of a disk
	maxDevices  = 64
	readTime    = 2 * time.Second // a file that takes longer hangs too
	maxHungRead = 3               // then no more is read
)

// limit is ctx with an end after a time. When that comes, what hangs is looked at
// first: the scenario's own end would take it away. The returned function has to be
// called once what the limit is for has ended.
func (r *run) limit(ctx context.Context, d time.Duration, cause error) (context.Context, func()) {
	limited, cancel := context.WithCancelCause(ctx)
	looked := make(chan struct{})
	timer := time.AfterFunc(d, func() {
		defer close(looked)
		if ctx.Err() == nil {
			r.look()
		}
		cancel(cause)
	})
	return limited, func() {
		if !timer.Stop() {
			<-looked
		}
		cancel(nil)
	}
}

// look has the result say what hangs, as it is at the first call.
func (r *run) look() { r.lookOnce.Do(func() { r.Hang = r.diagnose() }) }

// diagnose looks at the kernel and the target.
func (r *run) diagnose() *Hang {
	h := &Hang{}
	l := &looker{hang: h}
	l.tasks()
	for _, host := range entries("/sys/class/scsi_host") {
		if old := slices.Contains(r.hostsBefore, host); !old || r.Disposable {
			l.host(host, old)
		}
	}
	var held []probe.Held
	err := errors.New("the kernel has no probe")
	if r.probe != nil {
		held, err = r.probe.Held()
	}
	if err != nil {
		l.unseen("what the probe sees: %v", err)
	}
	if r.scenario.virtIO().Host != "" {
		l.unseen("commands in flight at the target, which is the host's")
	}
	h.Kernel = clip(l, "commands in flight in the kernel", held, maxListed)
	h.Target = clip(l, "commands in flight at the target", r.ledgers.unanswered(), maxListed)
	tags := h.tagsByCDB()
	for i := range h.Target {
		c := &h.Target[i]
		for cdb, of := range tags {
			if strings.HasPrefix(c.CDB, cdb) {
				c.Tags = of
			}
		}
	}
	return h
}

// busyCommand is a line of a hardware queue's list of requests in flight:
// "{.op=READ, ..., .tag=42, ..., .cmd=Read(10) 28 00 00 00 08 00 00 00 08 00, ...".
var busyCommand = regexp.MustCompile(`\.tag=(\d+),.*\.cmd=[^,]*?((?: [0-9a-f]{2}){6,}),`)

// tagsByCDB returns the tags of the commands that debugfs shows in flight.
func (h *Hang) tagsByCDB() map[string][]int {
	tags := map[string][]int{}
	for _, host := range h.Hosts {
		for _, d := range host.Devices {
			for _, q := range d.Queue {
				if !strings.HasSuffix(q.What, "/busy") {
					continue
				}
				for _, m := range busyCommand.FindAllStringSubmatch(q.Value, -1) {
					tag, err := strconv.Atoi(m[1])
					if cdb := strings.ReplaceAll(m[2], " ", ""); err == nil {
						tags[cdb] = append(tags[cdb], tag)
					}
				}
			}
		}
	}
	return tags
}

// clip leaves the first of many.
func clip[T any](l *looker, what string, all []T, most int) []T {
	if len(all) > most {
		l.unseen("%d more %s", len(all)-most, what)
		all = all[:most]
	}
	return all
}

// looker reads what a hung kernel still lets be read.
type looker struct {
	hang *Hang
	hung int // files that took too long
}

func (l *looker) unseen(format string, args ...any) {
	l.hang.Unseen = append(l.hang.Unseen, fmt.Sprintf(format, args...))
}

var errHungRead = errors.New("reading it hangs too")

// read reads a file. A read may wait for a lock that is never given back: then it
// is left alone.
func (l *looker) read(path string) (string, error) {
	if l.hung >= maxHungRead {
		return "", errHungRead
	}
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := os.ReadFile(path)
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		s := strings.TrimSpace(string(r.b))
		if len(s) > maxText {
			s = s[:strings.LastIndexByte(s[:maxText], '\n')+1] + "..."
		}
		return s, r.err
	case <-time.After(readTime):
		l.hung++
		l.unseen("%s: %v", path, errHungRead)
		return "", errHungRead
	}
}

// attrs reads files of a folder, those that are there and not empty.
func (l *looker) attrs(dir string, names ...string) (out []Fact) {
	for _, n := range names {
		if v, err := l.read(filepath.Join(dir, n)); err == nil && v != "" {
			out = append(out, Fact{What: n, Value: v})
		}
	}
	return out
}

// tasks finds the threads whose wait can't be interrupted, and the programs that this
// process runs, whatever they wait for.
func (l *looker) tasks() {
	stats, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	tasks := map[string]Task{}
	parents := map[int]int{}
	for _, path := range stats {
		line, err := l.read(path)
		if t, parent, ok := parseStat(line); err == nil && ok { // else it has ended
			tasks[path], parents[t.ID] = t, parent
		}
	}
	var found []Task
	var noStack error
	for _, path := range stats {
		t, ok := tasks[path]
		first := path == fmt.Sprintf("/proc/%d/task/%d/stat", t.ID, t.ID) // of its process's threads
		if !ok || t.State != "D" && (t.State == "Z" || !first || !descends(parents, t.ID)) {
			continue
		}
		stack, err := l.read(filepath.Join(filepath.Dir(path), "stack"))
		if err != nil {
			noStack = err
		}
		for line := range strings.Lines(stack) {
			if _, frame, ok := strings.Cut(line, "] "); ok && len(t.Stack) < maxFrames { // "[<0>] schedule+0x5e/0xd0"
				t.Stack = append(t.Stack, strings.TrimSpace(frame))
			}
		}
		found = append(found, t)
	}
	if noStack != nil {
		l.unseen("stacks: %v", noStack)
	}
	slices.SortStableFunc(found, func(a, b Task) int { return cmp.Compare(a.State, b.State) }) // D first
	l.hang.Tasks = clip(l, "tasks", found, maxTasks)
}

// descends says whether a task is one of those that this process has started.
func descends(parents map[int]int, id int) bool {
	for range 8 {
		if id = parents[id]; id == os.Getpid() {
			return true
		}
	}
	return false
}

// parseStat reads a line of /proc/PID/stat: "12 (kworker/u8:1) D 2 ...".
func parseStat(line string) (t Task, parent int, ok bool) {
	first, last := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if first < 0 || last < first {
		return t, 0, false
	}
	id, err := strconv.Atoi(strings.TrimSpace(line[:first]))
	rest := strings.Fields(line[last+1:])
	if err != nil || len(rest) < 2 {
		return t, 0, false
	}
	parent, err = strconv.Atoi(rest[1])
	return Task{ID: id, Name: line[first+1 : last], State: rest[0]}, parent, err == nil
}

// host looks at a host and its devices. An old one without devices is left out.
func (l *looker) host(name string, old bool) {
	h := HungHost{Name: name, Attrs: l.attrs("/sys/class/scsi_host/"+name, "proc_name", "state", "can_queue", "cmd_per_lun", "nr_hw_queues", "host_busy")}
	no := strings.TrimPrefix(name, "host")
	for _, d := range entries("/sys/bus/scsi/devices") {
		if !strings.HasPrefix(d, no+":") || len(h.Devices) == maxDevices {
			continue
		}
		dir := "/sys/bus/scsi/devices/" + d
		dev := HungDevice{Address: d, Attrs: l.attrs(dir, "state", "queue_depth", "device_busy", "device_blocked", "iorequest_cnt", "iodone_cnt", "iotmo_cnt", "ioerr_cnt")}
		for _, b := range entries(dir + "/block") {
			dev.Disk = b
			dev.Queue = l.queue("/sys/kernel/debug/block/" + b)
		}
		h.Devices = append(h.Devices, dev)
	}
	if !old || len(h.Devices) > 0 {
		l.hang.Hosts = append(l.hang.Hosts, h)
	}
}

// queue reads what debugfs has of a disk's queue (block/blk-mq-debugfs.c).
func (l *looker) queue(dir string) []Fact {
	if _, err := os.Stat(dir); err != nil {
		l.unseen("the disk's queue: %v (CONFIG_BLK_DEBUG_FS, and debugfs mounted)", err)
		return nil
	}
	out := l.attrs(dir, "state", "pm_only", "requeue_list", "sched/dispatch", "sched/queued")
	hctxs, _ := filepath.Glob(dir + "/hctx[0-9]*")
	for _, h := range clip(l, "hardware queues of "+filepath.Base(dir), hctxs, maxQueues) {
		for _, f := range l.attrs(h, "state", "flags", "active", "dispatch_busy", "dispatch", "busy", "tags", "sched_tags") {
			f.What = filepath.Base(h) + "/" + f.What
			out = append(out, f)
		}
	}
	return out
}

// idleWait are the lines of a tag set's wait queues that say that nobody waits.
var idleWait = regexp.MustCompile(`^(ws=\{|\{\.wait=inactive\},|\})$`)

// Lines are the diagnosis for people.
func (h *Hang) Lines() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, t := range h.Tasks {
		add("task %s, %d, in state %s", t.Name, t.ID, t.State)
		for _, f := range t.Stack {
			add("    %s", f)
		}
	}
	for _, host := range h.Hosts {
		add("%s: %s", host.Name, attrLine(host.Attrs))
		for _, d := range host.Devices {
			add("  %s %s: %s", d.Address, dash(d.Disk), attrLine(d.Attrs))
			for _, q := range d.Queue {
				if !strings.Contains(q.Value, "\n") {
					add("    %s: %s", q.What, q.Value)
					continue
				}
				add("    %s:", q.What)
				for line := range strings.Lines(q.Value) {
					if line = strings.TrimSpace(line); line != "" && !idleWait.MatchString(line) {
						add("      %s", line)
					}
				}
			}
		}
	}
	for _, c := range h.Kernel {
		token, late := strconv.Itoa(c.Token), ""
		if c.Token == queue.NoToken {
			token = "none"
		}
		if c.TimedOut {
			late = ", timed out"
		}
		add("in flight in the kernel: %s, hardware queue %d, tag %d, budget token %s, for %.1f s%s", c.Address, c.Queue, c.Tag, token, c.Age.Seconds(), late)
	}
	for _, c := range h.Target {
		where, tags := "", ""
		if c.Blocks > 0 {
			where = fmt.Sprintf(" LBA %d, %s,", c.LBA, plural(int(min(c.Blocks, 1<<31)), "block"))
		}
		if len(c.Tags) > 0 {
			tags = " tag " + strings.ReplaceAll(strings.Trim(fmt.Sprint(c.Tags), "[]"), " ", " or ") + ","
		}
		add("in flight at the target: LUN %d, %s,%s%s for %.1f s (%s)", c.LUN, c.Command, where, tags, c.Age.Seconds(), c.CDB)
	}
	for _, u := range h.Unseen {
		add("not seen: %s", u)
	}
	return out
}

func attrLine(facts []Fact) string {
	var s []string
	for _, f := range facts {
		s = append(s, f.What+" "+f.Value)
	}
	return strings.Join(s, ", ")
}
