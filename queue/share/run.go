package share

import (
	"container/heap"
	"math"
	"math/rand/v2"

	"lunlab/queue"
)

// requestTimeout is a disk's (SD_TIMEOUT), in seconds.
const requestTimeout = 30

// submitPart is how much of an I/O's CPU time is its submission's.
const submitPart = 0.6

// run is a run under way. Times are nanoseconds of virtual time.
type run struct {
	Config
	machine
	rng   *rand.Rand
	now   int64
	end   int64
	from  int64 // measured from here on
	stop  int64 // when the last drive of Stops gets nothing more
	grace int64
	fair  bool

	events events
	serial int
	cpus   []cpu
	tags   *tags
	drives []*drive
	hostAt int64 // when the host adapter can take the next command
	inUse  meter // tags
}

// cpu does one piece of work at a time. A completion, which an interrupt brings,
// comes in between a job's.
type cpu struct {
	done []*command
	jobs []*job

	work  *work // under way
	later *work // a job's that was interrupted
}

// work is a piece of a CPU's work.
type work struct {
	isJob bool
	end   int64
	left  int64 // when it was interrupted
	then  func()
}

// job is a thread that keeps commands at a drive.
type job struct {
	d       *drive
	cpu     int
	left    int // commands that it could send
	asleep  bool
	ready   bool // in its CPU's list
	again   bool // it was woken, and tries again
	wanting bool // it has begun to get a tag
	since   int64
}

// drive is a disk and its request queue.
type drive struct {
	index   int
	jobs    []*job
	service float64 // ns of a command
	servers int     // commands at once
	working int
	queued  []*command // at the drive

	held      int        // tags
	budget    int        // commands at the driver
	waiting   []*command // for the budget
	active    bool
	idleSince int64
	watched   bool
	off, on   int64 // the load comes in bursts: its period and length; off 0: always
	phase     int64
	stats     driveStats
	inUse     meter

	counter line                 // nr_active_requests_shared_tags, and fields beside it
	iostat  line                 // iorequest_cnt and iodone_cnt
	counts  *queue.PerCPUCounter // where they are per-CPU
}

type command struct {
	j     *job
	tag   int
	began int64
}

type event struct {
	at     int64
	serial int
	f      func()
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

func (r *run) at(t int64, f func()) {
	r.serial++
	heap.Push(&r.events, event{t, r.serial, f})
}

func newRun(c Config) *run {
	p := c.Params
	r := &run{Config: c, machine: newMachine(p), rng: rand.New(rand.NewPCG(c.Seed, 2))}
	r.fair = c.Rule.Fair && c.Drives > 1 // BLK_MQ_F_TAG_QUEUE_SHARED
	cpus := int(p.CPUs)
	r.cpus = make([]cpu, cpus)
	r.tags = newTags(c.Tags, cpus, r.rng)
	atOnce := min(c.Drives*min(c.Depth, c.QueueDepth), c.Tags)
	bound := min(float64(c.Drives)*c.Speed, p.HostSpeed*1e3, float64(atOnce)*1e6/p.Service, p.CPUs*1e9/max(p.IO, 1))
	ios := float64(c.IOs)
	if ios == 0 {
		ios = max(defaultIOs, float64(400*c.Drives))
	}
	length := int64(math.Ceil(ios / bound * 1e9))
	r.from = length / 4
	r.end = r.from + length
	r.stop = r.from + length/3
	switch {
	case p.Grace > 0:
		r.grace = int64(p.Grace * 1e6)
	case c.Load == Stops:
		r.grace = length / 3
	default:
		r.grace = int64(queue.IdleGrace(requestTimeout * 1e9))
	}
	for i := range c.Drives {
		r.addDrive(i, length)
	}
	return r
}

func (r *run) addDrive(i int, length int64) {
	p := r.Params
	speed, service := r.Speed, p.Service*1e3
	if r.Drives > 1 {
		by := 1 + p.Spread*(2*float64(i)/float64(r.Drives-1)-1)
		speed, service = speed*by, service/by
	}
	last := i == r.Drives-1
	if r.Load == Slow && last {
		speed, service = speed/slowness, service*slowness
	}
	servers := max(1, int(math.Round(speed*service/1e9)))
	d := &drive{index: i, servers: servers, service: float64(servers) / speed * 1e9}
	d.stats.speed, d.stats.duty = speed, 1
	d.counts = queue.NewPerCPUCounter(len(r.cpus))
	if r.Load == Bursts && i%2 == 1 {
		d.off = length / 20
		d.on = d.off / burstTime
		d.phase = r.rng.Int64N(d.off)
		d.stats.duty = 1. / burstTime
	}
	if r.Load == Stops && last {
		d.stats.duty = 1. / 3
	}
	jobs := min(int(p.Jobs), r.Depth)
	for k := range jobs {
		j := &job{d: d, cpu: (i*jobs + k) % len(r.cpus), left: r.Depth / jobs}
		if k < r.Depth%jobs {
			j.left++
		}
		d.jobs = append(d.jobs, j)
		r.at(0, func() { r.wakeJob(j) })
	}
	if d.off > 0 {
		r.at(d.off-d.phase, func() { r.burst(d) })
	}
	r.drives = append(r.drives, d)
}

// loaded says whether the drive is being given commands.
func (r *run) loaded(d *drive) bool {
	switch {
	case d.off > 0:
		return (r.now+d.phase)%d.off < d.on
	case r.Load == Stops && d.index == r.Drives-1:
		return r.now < r.stop
	}
	return true
}

// burst begins a burst of the drive's load.
func (r *run) burst(d *drive) {
	for _, j := range d.jobs {
		r.wakeJob(j)
	}
	r.at(r.now+d.off, func() { r.burst(d) })
}

// step does the next thing that happens; false at the run's end.
func (r *run) step() bool {
	if len(r.events) == 0 || r.events[0].at > r.end {
		return false
	}
	e := heap.Pop(&r.events).(event)
	r.now = e.at
	e.f()
	return true
}

// wakeJob puts a job that has something to do into its CPU's list.
func (r *run) wakeJob(j *job) {
	if j.ready || j.asleep || j.left == 0 || !j.wanting && !r.loaded(j.d) {
		return
	}
	j.ready = true
	c := &r.cpus[j.cpu]
	c.jobs = append(c.jobs, j)
	r.work(j.cpu)
}

// work begins the CPU's next piece of work, if it is free for it.
func (r *run) work(n int) {
	c := &r.cpus[n]
	switch {
	case c.work != nil && (!c.work.isJob || len(c.done) == 0):
	case len(c.done) > 0:
		if c.work != nil {
			c.later, c.work = c.work, nil
			c.later.left = c.later.end - r.now
		}
		q := c.done[0]
		c.done = c.done[1:]
		took, then := r.complete(q)
		r.begin(n, &work{then: then}, took)
	case c.later != nil:
		w := c.later
		c.later = nil
		r.begin(n, w, w.left)
	case len(c.jobs) > 0:
		j := c.jobs[0]
		c.jobs = c.jobs[1:]
		j.ready = false
		took, then := r.submit(j)
		r.begin(n, &work{isJob: true, then: then}, took)
	}
}

func (r *run) begin(n int, w *work, took int64) {
	c := &r.cpus[n]
	c.work, w.end = w, r.now+took
	r.at(w.end, func() {
		if c.work != w || r.now != w.end { // it was interrupted
			return
		}
		c.work = nil
		w.then()
		r.work(n)
	})
}

// submit is a job's next command, up to the driver. It returns how long that
// takes, and what follows.
func (r *run) submit(j *job) (int64, func()) {
	d := j.d
	if !j.wanting {
		j.wanting, j.since = true, r.now
	}
	if !d.active {
		d.active = true
		r.tags.activate(1)
	}
	cost := int64(0)
	if !j.again {
		cost += int64(r.Params.IO * submitPart)
		cost += r.hotFields(d, j.cpu, cost)
	}
	nr, took := r.tryTag(j, cost)
	cost += took
	if nr < 0 {
		// blk_mq_get_tag tries again after it has run the queue, and when it
		// is in the wait queue.
		tries := 2
		if j.again {
			tries = 1
		}
		for range tries {
			_, took = r.tryTag(j, cost)
			cost += took
		}
		cost += r.tags.sleep(&r.machine, j, r.now+cost) + int64(r.Params.Sleep)
		j.asleep, j.again = true, true
		return cost, func() {}
	}
	j.again, j.wanting = false, false
	j.left--
	q := &command{j: j, tag: nr, began: j.since}
	r.tags.holder[nr] = q
	d.held++
	r.inUse.set(r, d, 1)
	if r.fair {
		cost += r.write(&d.counter, j.cpu, r.now+cost)
	}
	if d.budget < r.QueueDepth {
		d.budget++
		cost += r.count(d, j.cpu, cost)
		return cost, func() {
			r.send(q)
			r.wakeJob(j)
		}
	}
	return cost, func() {
		d.waiting = append(d.waiting, q)
		r.wakeJob(j)
	}
}

// hotFields reads what each I/O reads of its request queue when it is sent and when
// it ends.
func (r *run) hotFields(d *drive, cpu int, cost int64) int64 {
	if r.Params.HotFields == 0 {
		return 0
	}
	return r.read(&d.counter, cpu, r.now+cost)
}

// tryTag is __blk_mq_get_tag: -1 if the drive has its share or there is no tag.
func (r *run) tryTag(j *job, cost int64) (nr int, took int64) {
	if r.fair {
		took = r.read(&j.d.counter, j.cpu, r.now+cost)
		if j.d.held >= queue.FairTags(r.Tags, r.tags.activeQueues) {
			return -1, took
		}
	}
	nr, more := r.tags.get(&r.machine, j.cpu, r.now+cost+took, int64(r.Params.Word))
	return nr, took + more
}

// count counts an I/O in iorequest_cnt or iodone_cnt, which share a line.
func (r *run) count(d *drive, cpu int, cost int64) int64 {
	if r.Rule.PerCPUCounters && !d.counts.Add(cpu, 1) {
		return 0
	}
	return r.write(&d.iostat, cpu, r.now+cost)
}

// send hands a command to the host adapter, which hands it to the drive.
func (r *run) send(q *command) {
	r.hostAt = max(r.hostAt, r.now) + int64(1e6/r.Params.HostSpeed)
	r.at(r.hostAt, func() {
		d := q.j.d
		if d.working == d.servers {
			d.queued = append(d.queued, q)
			return
		}
		d.working++
		r.serve(q)
	})
}

// serve is the drive's own work on a command.
func (r *run) serve(q *command) {
	d, v := q.j.d, r.Params.Variation
	took := d.service * (1 - v + v*r.rng.ExpFloat64())
	r.at(r.now+int64(took), func() {
		if len(d.queued) > 0 {
			next := d.queued[0]
			d.queued = d.queued[1:]
			r.serve(next)
		} else {
			d.working--
		}
		c := &r.cpus[q.j.cpu]
		c.done = append(c.done, q)
		r.work(q.j.cpu)
	})
}

// complete ends a command on the CPU that sent it.
func (r *run) complete(q *command) (int64, func()) {
	j, d := q.j, q.j.d
	cost := int64(r.Params.IO * (1 - submitPart))
	cost += r.count(d, j.cpu, cost)
	if r.fair {
		cost += r.hotFields(d, j.cpu, cost)
		cost += r.write(&d.counter, j.cpu, r.now+cost)
	}
	took, woken := r.tags.give(&r.machine, j.cpu, r.now+cost, q.tag)
	cost += took + int64(r.Params.Wake)*int64(len(woken))
	d.held--
	r.inUse.set(r, d, -1)
	var next *command
	if len(d.waiting) > 0 {
		next, d.waiting = d.waiting[0], d.waiting[1:]
		cost += int64(r.Params.Restart)
		cost += r.count(d, j.cpu, cost)
	} else {
		d.budget--
	}
	return cost, func() {
		r.ended(q)
		if next != nil {
			r.send(next)
		}
		j.left++
		r.wakeJob(j)
		r.wakeAll(woken)
	}
}

func (r *run) wakeAll(jobs []*job) {
	for _, j := range jobs {
		j.asleep = false
		r.wakeJob(j)
	}
}

// ended counts a command that has ended. When it was the drive's last, the drive
// gives up its share after a while.
func (r *run) ended(q *command) {
	d := q.j.d
	d.stats.ended(r, q)
	if d.held == 0 {
		d.idleSince = r.now
		r.watchIdle(d)
	}
}

// watchIdle is the time-out timer's look for a queue without requests.
func (r *run) watchIdle(d *drive) {
	if d.watched {
		return
	}
	d.watched = true
	r.at(d.idleSince+r.grace, func() {
		d.watched = false
		switch {
		case d.held > 0:
		case r.now < d.idleSince+r.grace:
			r.watchIdle(d)
		default: // blk_mq_tag_idle, which wakes all
			d.active = false
			r.tags.activate(-1)
			r.wakeAll(r.tags.wake(r.tags.sleepers))
		}
	})
}
