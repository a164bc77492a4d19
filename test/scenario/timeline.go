package scenario

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Timeline is what was in flight while a scenario ran, looked at again and again:
// what came and went between two looks isn't in it.
type Timeline struct {
	EveryMS int `json:"every_ms"` // the time between two looks, at least
	EndMS   int `json:"end_ms"`

	// Steps are the scenario's, with the times at which they began.
	Steps []TimedStep `json:"steps"`
	LUNs  []LUNTrack  `json:"luns"`
	Tags  []TagTrack  `json:"tags,omitempty"` // of the host's hardware queues; none if the kernel doesn't show them
}

// TimedStep is a step and when it began.
type TimedStep struct {
	MS   int    `json:"ms"`
	What string `json:"what"`
}

// LUNTrack is a LUN's part of a timeline.
type LUNTrack struct {
	Device    string `json:"device"`     // host:channel:id:lun
	CountedBy string `json:"counted_by"` // "target" or "probe"
	InFlight  Series `json:"in_flight"`

	// QueueDepth is the attribute that sysfs has.
	QueueDepth Series `json:"queue_depth"`

	// Held is 1 while the target held completions back, so that what is in
	// flight is what the kernel lets be in flight; else 0.
	Held Series `json:"held,omitempty"`
}

// TagTrack is a hardware queue's part of a timeline.
type TagTrack struct {
	Queue int `json:"queue"` // -1: the tags are host-wide
	Tags  int `json:"tags"`  // how many there are

	// InUse counts requests that have a tag, those that wait for a budget token
	// among them.
	InUse Series `json:"in_use"`
}

// Point is what was seen from a time on, until the next point: one value, or
// the lowest and the highest of several looks.
type Point struct {
	MS   int `json:"ms"`
	Low  int `json:"low"`
	High int `json:"high"`
}

// Unknown is the value of what could not be looked at, or was not for longer than
// [lateAfter].
const Unknown = -1

// maxPoints bounds a series: two neighbours in a longer one become one.
const maxPoints = 200

// Series are points in the order of their times, at most [maxPoints].
type Series []Point

// add adds a value that was seen, if it is another than the last.
func (s *Series) add(ms, value int) {
	if n := len(*s); n > 0 && (*s)[n-1].Low == value && (*s)[n-1].High == value {
		return
	}
	if len(*s) == maxPoints {
		s.merge(ms)
	}
	*s = append(*s, Point{MS: ms, Low: value, High: value})
}

// merge makes one point of those two neighbours that are over in the shortest time;
// of one that is known and one that is not only if there are no others.
func (s *Series) merge(end int) {
	p := *s
	at, best := 0, math.MaxInt
	for i := range len(p) - 1 {
		until := end
		if i+2 < len(p) {
			until = p[i+2].MS
		}
		took := until - p[i].MS
		if (p[i].Low == Unknown) != (p[i+1].Low == Unknown) {
			took += math.MaxInt / 2
		}
		if took < best {
			at, best = i, took
		}
	}
	p[at] = p[at].and(p[at+1])
	*s = slices.Delete(p, at+1, at+2)
}

// and is a point and the one after it as one, which is known if both are.
func (p Point) and(next Point) Point {
	if p.Low == Unknown || next.Low == Unknown {
		return Point{MS: p.MS, Low: Unknown, High: Unknown}
	}
	return Point{MS: p.MS, Low: min(p.Low, next.Low), High: max(p.High, next.High)}
}

const (
	lookEvery = 20 * time.Millisecond
	lateAfter = 10 * lookEvery

	// What is drawn of one host is bounded.
	maxLUNTracks = 8
	maxTagTracks = 8
	maxSteps     = 100
)

// recorder looks at the disks of a scenario until it is told to stop.
type recorder struct {
	start      time.Time
	stop, done chan struct{}

	mu       sync.Mutex
	timeline Timeline
	last     int  // when something was seen, in milliseconds
	ended    bool // nothing is added any more
}

// tracked is a disk that a recorder looks at.
type tracked struct {
	*disk
	count func() int
	depth attribute
}

// record begins the run's timeline: what is in flight on these disks of one host.
func (r *run) record(disks ...*disk) {
	rec := &recorder{start: time.Now(), stop: make(chan struct{}), done: make(chan struct{})}
	rec.timeline.EveryMS = int(lookEvery.Milliseconds())
	var all []tracked
	for _, d := range disks[:min(len(disks), maxLUNTracks)] {
		t := tracked{disk: d, depth: attribute{path: "/sys/bus/scsi/devices/" + d.device + "/queue_depth"}}
		by := "target"
		if d.meter != nil {
			t.count = d.meter.InFlight
		} else {
			by, t.count = "probe", r.inFlight
		}
		all = append(all, t)
		rec.timeline.LUNs = append(rec.timeline.LUNs, LUNTrack{Device: d.device, CountedBy: by})
	}
	r.recorder = rec
	go rec.look(all)
}

// inFlight is what the probe counts now, Unknown before the first command.
func (r *run) inFlight() int {
	d, err := r.probed()
	if err != nil {
		return Unknown
	}
	return d.InFlight
}

// recorded ends the timeline, if one was begun, and puts it into the result.
func (r *run) recorded() {
	if r.recorder != nil {
		r.Timeline = r.recorder.end()
		r.recorder = nil
	}
}

func (rec *recorder) now() int { return int(time.Since(rec.start).Milliseconds()) }

// note changes the timeline, until its end.
func (rec *recorder) note(f func(t *Timeline, ms int)) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if !rec.ended {
		f(&rec.timeline, rec.now())
	}
}

// saw notes what was seen, and if that is late, that nothing was in between.
func (rec *recorder) saw(f func(t *Timeline, ms int)) {
	rec.note(func(t *Timeline, ms int) {
		if ms-rec.last > int(lateAfter.Milliseconds()) {
			t.missed(rec.last + t.EveryMS)
		}
		rec.last = ms
		f(t, ms)
	})
}

// step notes that a step begins.
func (rec *recorder) step(what string) {
	rec.note(func(t *Timeline, ms int) {
		if len(t.Steps) < maxSteps {
			t.Steps = append(t.Steps, TimedStep{MS: ms, What: what})
		}
	})
}

// end stops the looking and returns what was seen. A look that hangs in the
// kernel isn't waited for.
func (rec *recorder) end() *Timeline {
	rec.note(func(t *Timeline, ms int) { t.EndMS, rec.ended = ms, true })
	close(rec.stop)
	select {
	case <-rec.done:
	case <-time.After(time.Second):
	}
	return &rec.timeline
}

// look looks at the disks every [lookEvery], or less often where that would take a
// CPU more than a fifth of its time.
func (rec *recorder) look(disks []tracked) {
	defer close(rec.done)
	queues := tagQueues(disks[0].device)
	rec.note(func(t *Timeline, _ int) {
		for _, q := range queues {
			t.Tags = append(t.Tags, TagTrack{Queue: q.number, Tags: q.tags})
		}
	})
	defer func() {
		for i := range disks {
			disks[i].depth.close()
		}
		for i := range queues {
			queues[i].file.close()
		}
	}()
	for {
		start := time.Now()
		for i := range disks {
			rec.lookAtDisk(i, &disks[i])
		}
		for i := range queues {
			inUse := queues[i].inUse(disks[0].device)
			rec.saw(func(t *Timeline, ms int) { t.Tags[i].InUse.add(ms, inUse) })
		}
		select {
		case <-rec.stop:
			return
		case <-time.After(min(max(lookEvery, 4*time.Since(start)), lateAfter/2)):
		}
	}
}

// missed says that nothing was looked at from a time on.
func (t *Timeline) missed(from int) {
	for i := range t.LUNs {
		l := &t.LUNs[i]
		l.InFlight.add(from, Unknown)
		l.QueueDepth.add(from, Unknown)
		if l.Held != nil {
			l.Held.add(from, Unknown)
		}
	}
	for i := range t.Tags {
		t.Tags[i].InUse.add(from, Unknown)
	}
}

func (rec *recorder) lookAtDisk(i int, d *tracked) {
	depth, err := strconv.Atoi(d.depth.read())
	if err != nil {
		depth = Unknown
	}
	held, count := 0, d.count()
	if d.meter != nil && d.meter.Holds() {
		held = 1
	}
	rec.saw(func(t *Timeline, ms int) {
		l := &t.LUNs[i]
		l.InFlight.add(ms, count)
		l.QueueDepth.add(ms, depth)
		if d.meter != nil {
			l.Held.add(ms, held)
		}
	})
}

// attribute is a file of sysfs or debugfs that is read again and again.
type attribute struct {
	path string
	fd   int // 0: not open
	buf  [4096]byte
}

// read returns what the file holds, "" if it can't be read.
func (a *attribute) read() string {
	if a.fd == 0 {
		fd, err := unix.Open(a.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return ""
		}
		a.fd = fd
	}
	n, err := unix.Pread(a.fd, a.buf[:], 0)
	if err != nil { // the device is gone; there may be another
		a.close()
		return ""
	}
	return strings.TrimSpace(string(a.buf[:n]))
}

func (a *attribute) close() {
	if a.fd != 0 {
		unix.Close(a.fd)
		a.fd = 0
	}
}

// tagQueue is a hardware queue's tags as debugfs shows them
// (CONFIG_BLK_DEBUG_FS).
type tagQueue struct {
	number int // -1: the tags are host-wide
	tags   int
	file   attribute
}

// tagQueues finds the hardware queues of a SCSI device.
func tagQueues(device string) []tagQueue {
	dir := blockDebug(device)
	var qs []tagQueue
	for n := range maxTagTracks {
		hctx := fmt.Sprintf("%s/hctx%d", dir, n)
		q := tagQueue{number: n, file: attribute{path: hctx + "/tags"}}
		tags, _, ok := parseTags(q.file.read())
		if !ok {
			break
		}
		q.tags = tags
		flags, _ := os.ReadFile(hctx + "/flags")
		if bytes.Contains(flags, []byte("TAG_HCTX_SHARED")) {
			q.number = -1
			return []tagQueue{q}
		}
		qs = append(qs, q)
	}
	return qs
}

// blockDebug is where debugfs shows a SCSI device's block device.
func blockDebug(device string) string {
	disks := entries("/sys/bus/scsi/devices/" + device + "/block")
	if len(disks) == 0 {
		return "/nowhere"
	}
	return "/sys/kernel/debug/block/" + disks[0]
}

// inUse counts the tags that are in use, Unknown if that can't be seen.
func (q *tagQueue) inUse(device string) int {
	if q.file.fd == 0 { // the device had gone, and may have come back as another disk
		q.file.path = fmt.Sprintf("%s/hctx%d/tags", blockDebug(device), max(q.number, 0))
	}
	if _, n, ok := parseTags(q.file.read()); ok {
		return n
	}
	return Unknown
}

// parseTags reads a hctx's tags file: how many there are, and are in use.
func parseTags(text string) (tags, inUse int, ok bool) {
	_, text, found := strings.Cut("\n"+text, "\nnr_tags=")
	first, text, _ := strings.Cut(text, "\n")
	_, text, ok = strings.Cut(text, "\nbitmap_tags:")
	text, _, _ = strings.Cut(text, "\nbitmap_reserved_tags:")
	_, text, busy := strings.Cut(text, "\nbusy=")
	second, _, _ := strings.Cut(text, "\n")
	tags, err1 := strconv.Atoi(first)
	inUse, err2 := strconv.Atoi(second)
	return tags, inUse, found && ok && busy && err1 == nil && err2 == nil && tags > 0 && inUse >= 0
}
