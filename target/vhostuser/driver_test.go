package vhostuser_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"lunlab/target/vhostuser"
)

var le = binary.LittleEndian

const (
	guestBase = 0x10_0000_0000
	userBase  = 0x7f00_0000_0000
	memSize   = 4 << 20
	dataBase  = 1 << 20 // data in the guest's memory; virtqueues are before it

	version1 = 1 << 32
	protocol = 1 << 30
	eventIdx = 1 << 29
	indirect = 1 << 28
	t10pi    = 1 << 3
	hotplug  = 1 << 1
	change   = 1 << 2

	allProtocol = 1<<0 | 1<<3 | 1<<9 | 1<<12 | 1<<13 | 1<<15 | 1<<16
)

// frontEnd is a front end and the driver behind it.
type frontEnd struct {
	t        testing.TB
	conn     *net.UnixConn
	mem      []byte
	memFD    int
	queues   []*queue
	features uint64
	dead     bool // a message went wrong and may: no complaint
}

// queue is a virtqueue on the driver's side.
type queue struct {
	f                *frontEnd
	index            int
	num              uint32
	off              uint32 // in mem
	kick, call, errs int
	avail, seen      uint16
}

// serve serves a target until the test ends and returns the socket's path.
func serve(t testing.TB, o vhostuser.Options) (string, *vhostuser.Device) {
	t.Helper()
	d, err := vhostuser.New(o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	ln, err := vhostuser.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Serve(ln) }()
	t.Cleanup(func() {
		d.Close()
		if err := <-ended; err != vhostuser.ErrClosed {
			t.Errorf("Serve: %v", err)
		}
	})
	return path, d
}

// memfd makes a file in memory, sealed or not.
func memfd(t testing.TB, size int64, sealed bool) int {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if sealed {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// dial connects a front end that has memory, and no virtqueues yet.
func dial(t testing.TB, path string, features uint64, sealed bool) *frontEnd {
	t.Helper()
	f := &frontEnd{t: t, features: features, memFD: memfd(t, memSize, sealed)}
	mem, err := unix.Mmap(f.memFD, 0, memSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	f.mem = mem
	t.Cleanup(func() { unix.Munmap(mem) })
	f.connect(path)
	return f
}

func (f *frontEnd) connect(path string) {
	f.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		f.t.Fatal(err)
	}
	f.conn = c
	f.t.Cleanup(func() { c.Close() })
	if got := le.Uint64(f.ask(1, nil)); got&f.features != f.features {
		f.t.Fatalf("features %#x, want %#x", got, f.features)
	}
	f.must(2, u64(f.features))
	if f.features&protocol != 0 {
		if got := le.Uint64(f.ask(15, nil)); got&allProtocol != allProtocol {
			f.t.Fatalf("protocol features %#x, want %#x", got, allProtocol)
		}
		f.send(16, 0, u64(allProtocol))
	}
	f.must(3, nil)
	f.must(5, memTable(guestBase, memSize, userBase, 0), f.memFD)
}

func u64(v uint64) []byte { return le.AppendUint64(nil, v) }
func state(index int, num uint32) []byte {
	return le.AppendUint32(le.AppendUint32(nil, uint32(index)), num)
}

// memTable describes regions of memory by four numbers each.
func memTable(v ...uint64) []byte {
	b := u64(uint64(len(v) / 4))
	for i := 0; i < len(v); i += 4 {
		for _, x := range []uint64{v[i], v[i+1], v[i+2], v[i+3]} {
			b = le.AppendUint64(b, x)
		}
	}
	return b
}

// send sends a message.
func (f *frontEnd) send(request, flags uint32, payload []byte, fds ...int) {
	f.t.Helper()
	b := le.AppendUint32(nil, request)
	b = le.AppendUint32(b, 1|flags)
	b = le.AppendUint32(b, uint32(len(payload)))
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := f.conn.WriteMsgUnix(append(b, payload...), oob, nil); err != nil && !f.dead {
		f.t.Fatalf("request %d: %v", request, err)
	}
}

// reply reads the payload of a reply, and a file descriptor if one came along.
func (f *frontEnd) reply() (payload []byte, fd int, err error) {
	var h [12]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, on, _, _, err := f.conn.ReadMsgUnix(h[:], oob)
	if err == nil && n < len(h) {
		_, err = io.ReadFull(f.conn, h[n:])
	}
	if err != nil {
		return nil, -1, err
	}
	fd = -1
	if list, _ := unix.ParseSocketControlMessage(oob[:on]); len(list) > 0 {
		if fds, _ := unix.ParseUnixRights(&list[0]); len(fds) > 0 {
			fd = fds[0]
		}
	}
	payload = make([]byte, le.Uint32(h[8:]))
	_, err = io.ReadFull(f.conn, payload)
	return payload, fd, err
}

// ask sends a message that has a reply, and returns it.
func (f *frontEnd) ask(request uint32, payload []byte) []byte {
	f.t.Helper()
	f.send(request, 0, payload)
	b, _, err := f.reply()
	if err != nil {
		f.t.Fatalf("request %d: %v", request, err)
	}
	return b
}

// acked sends a message and tells whether it was done.
func (f *frontEnd) acked(request uint32, payload []byte, fds ...int) bool {
	f.t.Helper()
	f.send(request, 8, payload, fds...)
	b, _, err := f.reply()
	if err != nil {
		f.t.Fatalf("request %d: %v", request, err)
	}
	return le.Uint64(b) == 0
}

// must is acked for a message that has to be done. It waits only where the front
// end has agreed on acknowledgements.
func (f *frontEnd) must(request uint32, payload []byte, fds ...int) {
	f.t.Helper()
	if f.features&protocol == 0 || request < 5 {
		f.send(request, 0, payload, fds...)
	} else if !f.acked(request, payload, fds...) {
		f.t.Fatalf("request %d was refused", request)
	}
}

const (
	availOff   = 16 << 10
	usedOff    = 20 << 10
	tableOff   = 32 << 10 // a table of descriptors, for each head of 256
	queueRange = 64 << 10
)

// queue sets up virtqueue index.
func (f *frontEnd) queue(index int, num uint32) *queue {
	f.t.Helper()
	q := &queue{f: f, index: index, num: num, off: uint32(index) * queueRange}
	for _, fd := range []*int{&q.kick, &q.call, &q.errs} {
		var err error
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			f.t.Fatal(err)
		}
		f.t.Cleanup(func() { unix.Close(*fd) })
	}
	q.setUp()
	f.queues = append(f.queues, q)
	return q
}

func (q *queue) setUp() {
	f := q.f
	f.t.Helper()
	f.must(8, state(q.index, q.num))
	f.must(10, state(q.index, uint32(q.avail)))
	f.must(9, q.addr())
	f.must(13, u64(uint64(q.index)), q.call)
	f.must(14, u64(uint64(q.index)), q.errs)
	f.must(12, u64(uint64(q.index)), q.kick)
	if f.features&protocol != 0 {
		f.must(18, state(q.index, 1))
	}
}

func (q *queue) addr() []byte {
	base := userBase + uint64(q.off)
	b := state(q.index, 0)
	for _, v := range []uint64{base, base + usedOff, base + availOff, 0} {
		b = le.AppendUint64(b, v)
	}
	return b
}

func word(b []byte) *uint32 { return (*uint32)(unsafe.Pointer(&b[0])) }

// buf is a descriptor's buffer in the guest's memory.
type buf struct {
	off, n uint32
	write  bool // by the device
}

const (
	next  = 1
	write = 2
	table = 4
)

func putDesc(b []byte, addr uint64, n uint32, flags, nextOne uint16) {
	le.PutUint64(b, addr)
	le.PutUint32(b[8:], n)
	le.PutUint16(b[12:], flags)
	le.PutUint16(b[14:], nextOne)
}

// put makes the buffers available as the request that begins with descriptor head,
// the following ones being its others.
func (q *queue) put(head uint16, bufs ...buf) {
	d := q.f.mem[q.off:]
	at := uint32(head)
	if q.f.features&indirect != 0 {
		t := tableOff + uint32(head)*128
		putDesc(d[16*at:], guestBase+uint64(q.off+t), uint32(16*len(bufs)), table, 0)
		d, at = d[t:], 0
	}
	for i, b := range bufs {
		flags := uint16(0)
		if b.write {
			flags |= write
		}
		if i < len(bufs)-1 {
			flags |= next
		}
		putDesc(d[16*at:], guestBase+uint64(b.off), b.n, flags, uint16(at+1))
		at++
	}
	q.publish(head)
}

// publish puts a head into the available ring, without a kick.
func (q *queue) publish(head uint16) {
	a := q.f.mem[q.off+availOff:]
	le.PutUint16(a[4+2*(uint32(q.avail)%q.num):], head)
	q.avail++
	if q.f.features&eventIdx != 0 {
		le.PutUint16(a[4+2*q.num:], q.seen) // used_event
	}
	atomic.StoreUint32(word(a), uint32(q.avail)<<16)
}

var oneCount = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// ring kicks the virtqueue, but one that is to be kicked by messages.
func (q *queue) ring() {
	if q.kick >= 0 {
		unix.Write(q.kick, oneCount)
	}
}

// poll returns the next entry of the used ring, if there is one.
func (q *queue) poll() (head uint16, n uint32, ok bool) {
	u := q.f.mem[q.off+usedOff:]
	if uint16(atomic.LoadUint32(word(u))>>16) == q.seen {
		return 0, 0, false
	}
	e := u[4+8*(uint32(q.seen)%q.num):]
	q.seen++
	return uint16(le.Uint32(e)), le.Uint32(e[4:]), true
}

const patience = 2 * time.Minute

// wait waits for the next entry of the used ring.
func (q *queue) wait() (head uint16, n uint32) {
	q.f.t.Helper()
	for i, end := 0, time.Now().Add(patience); ; i++ {
		if h, n, ok := q.poll(); ok {
			return h, n
		}
		if i%1000 == 999 {
			if time.Now().After(end) {
				q.f.t.Fatalf("nothing was completed in virtqueue %d", q.index)
			}
			time.Sleep(50 * time.Microsecond)
		}
		runtime.Gosched()
	}
}

// waitFD waits until an eventfd was written to.
func (f *frontEnd) waitFD(fd int, what string) {
	f.t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll(p, 1000)
		if n > 0 {
			var b [8]byte
			unix.Read(fd, b[:])
			return
		}
		if err != nil && err != unix.EINTR || time.Now().After(end) {
			f.t.Fatalf("%s: no event (%v)", what, err)
		}
	}
}

// command is a request and its outcome.
type command struct {
	lun      uint16
	id       uint64
	attr     byte
	cdb      []byte
	out      []byte
	in       int
	outPI    int // of out and in
	inPI     int
	status   byte
	response byte
	sense    []byte
	residual uint32
	written  uint32
	data     []byte
}

const slot = 128 << 10 // of each head's buffers

// submit makes a command available, with its buffers where head has them.
func (q *queue) submit(head uint16, c *command) {
	base := uint32(dataBase) + uint32(head)*slot
	req := q.f.mem[base:]
	clear(req[:256])
	req[0] = 1
	req[2], req[3] = 0x40|byte(c.lun>>8), byte(c.lun)
	le.PutUint64(req[8:], c.id)
	req[16] = c.attr
	n := uint32(51)
	if q.f.features&t10pi != 0 {
		le.PutUint32(req[19:], uint32(c.outPI))
		le.PutUint32(req[23:], uint32(c.inPI))
		copy(req[27:], c.cdb)
		n = 59
	} else {
		copy(req[19:], c.cdb)
	}
	bufs := append(make([]buf, 0, 8), buf{base, n, false})
	at := base + 512
	if len(c.out) > 0 {
		copy(q.f.mem[at:], c.out)
		half := uint32(len(c.out)) / 3
		bufs = append(bufs, buf{at, half, false}, buf{at + half, uint32(len(c.out)) - half, false})
	}
	bufs = append(bufs, buf{base + 256, 108, true})
	if c.in > 0 {
		half := uint32(c.in) / 3
		bufs = append(bufs, buf{at, half, true}, buf{at + half, uint32(c.in) - half, true})
	}
	if q.f.features&indirect == 0 && int(head)+len(bufs) > int(q.num) {
		q.f.t.Fatal("no room for the descriptors")
	}
	q.put(head, bufs...)
	q.ring()
}

// result reads what became of a command.
func (q *queue) result(head uint16, n uint32, c *command) {
	base := uint32(dataBase) + uint32(head)*slot
	r := q.f.mem[base+256:]
	c.sense = bytes.Clone(r[12:][:min(le.Uint32(r), 96)])
	c.residual, c.status, c.response, c.written = le.Uint32(r[4:]), r[10], r[11], n
	c.data = bytes.Clone(q.f.mem[base+512:][:c.in])
}

// run runs one command.
func (q *queue) run(c command) command {
	q.f.t.Helper()
	q.submit(0, &c)
	head, n := q.wait()
	if head != 0 {
		q.f.t.Fatalf("descriptor %d was completed, want 0", head)
	}
	q.result(0, n, &c)
	return c
}

// good is run for a command that has to succeed.
func (q *queue) good(c command) []byte {
	q.f.t.Helper()
	r := q.run(c)
	if r.response != 0 || r.status != 0 || r.residual != 0 {
		q.f.t.Fatalf("CDB % x: response %d, status %#x, sense % x, residual %d", c.cdb, r.response, r.status, r.sense, r.residual)
	}
	return r.data
}

func rw16(op byte, lba uint64, n uint32) []byte {
	b := make([]byte, 16)
	b[0] = op
	binary.BigEndian.PutUint64(b[2:], lba)
	binary.BigEndian.PutUint32(b[10:], n)
	return b
}

const (
	read16  = 0x88
	write16 = 0x8a
)

var testUnitReady = make([]byte, 6)

// ready takes the unit attention of a new nexus off.
func (q *queue) ready(lun uint16) {
	q.f.t.Helper()
	if r := q.run(command{lun: lun, cdb: testUnitReady}); r.status != 2 || r.sense[2] != 6 {
		q.f.t.Fatalf("first TEST UNIT READY: response %d, status %#x, sense % x", r.response, r.status, r.sense)
	}
	q.good(command{lun: lun, cdb: testUnitReady})
}
