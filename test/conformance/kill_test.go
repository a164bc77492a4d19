package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lunlab/test/need"
)

const (
	killRounds = 10
	// killSlots of killSlot bytes each make a LUN. No two writes that are in flight
	// touch one slot.
	killSlots, killSlot = 512, 8192
	killBlock           = 512
)

// blockHistory is what a block can hold after a crash: what is durable, or what
// was written later, in that order.
type blockHistory struct {
	durable byte
	later   []byte
	flushed int // of later, that a flush was asked to make durable
}

// killed is one LUN that is written to until its server is killed.
type killed struct {
	t      *testing.T
	number int
	always bool // every write is durable: its write cache is off
	rnd    *rand.Rand
	blocks []blockHistory

	flushing bool // a flush has ended since the last write was answered
	lost     int  // blocks that didn't hold what was written last
}

var wrote = regexp.MustCompile(`wrote (\d+)/(\d+) bytes at offset (\d+)`)

// qemuIO is a qemu-io that is given commands one by one: it overlooks those that
// come before it asks for them.
type qemuIO struct {
	cmd    *exec.Cmd
	stdin  io.Writer
	stdout *bufio.Reader
	stderr output
}

const qemuIOPrompt = "qemu-io> "

func startQemuIO(url string, start func(*exec.Cmd) error) (*qemuIO, error) {
	q := &qemuIO{cmd: exec.Command("qemu-io", "-t", "writeback", "-f", "raw", url)}
	q.cmd.Stderr = &q.stderr
	stdin, err := q.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := q.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	q.stdin, q.stdout = stdin, bufio.NewReader(stdout)
	return q, start(q.cmd)
}

// said returns what it says until it asks for a command.
func (q *qemuIO) said() (string, error) {
	var b strings.Builder
	for !strings.HasSuffix(b.String(), qemuIOPrompt) {
		c, err := q.stdout.ReadByte()
		if err != nil {
			return b.String(), err
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}

// errGone says that qemu-io ended, as it does when it is killed.
var errGone = errors.New("qemu-io ended")

// do gives a command, and returns what was said until the next can be given.
func (q *qemuIO) do(command string) (string, error) {
	if _, err := io.WriteString(q.stdin, command+"\n"); err != nil {
		return "", errGone
	}
	out, err := q.said()
	switch {
	case strings.Contains(out, "failed"):
		return out, fmt.Errorf("%s: %s\n%s", command, out, &q.stderr)
	case err != nil:
		return out, errGone
	}
	return out, nil
}

// write has a qemu-io write to the LUN until that is killed or an error occurs:
// batches of writes that run at once, some with FUA, and flushes now and then.
// acknowledged counts the writes that were.
func (k *killed) write(url string, acknowledged *atomic.Int64, all *clients) error {
	q, err := startQemuIO(url, all.start)
	if err != nil {
		return err
	}
	defer q.cmd.Wait()
	if _, err := q.said(); err != nil {
		return errGone
	}
	for {
		if err := k.writeBatch(q, acknowledged); err != nil {
			return err
		}
		if k.rnd.IntN(4) > 0 {
			continue
		}
		for i := range k.blocks {
			k.blocks[i].flushed = len(k.blocks[i].later)
		}
		if _, err := q.do("flush"); err != nil {
			return err
		}
		// Whether it succeeded isn't said. It did if the server lives to do more.
		k.flushing = true
	}
}

// writeBatch writes to some slots.
func (k *killed) writeBatch(q *qemuIO, acknowledged *atomic.Int64) error {
	type request struct {
		length int64
		fua    bool
	}
	batch := map[int64]request{} // by offset
	answered := func(out string) error {
		for _, m := range wrote.FindAllStringSubmatch(out, -1) {
			if k.flushing {
				k.flushing = false
				k.wasFlushed()
			}
			at, _ := strconv.ParseInt(m[3], 10, 64)
			r, ok := batch[at]
			if !ok || m[1] != m[2] || m[1] != strconv.FormatInt(r.length, 10) {
				return fmt.Errorf("unexpected: %s", m[0])
			}
			delete(batch, at)
			acknowledged.Add(1)
			for i := at / killBlock; r.fua && i < (at+r.length)/killBlock; i++ {
				k.blocks[i] = blockHistory{durable: k.blocks[i].last()}
			}
		}
		return nil
	}
	for range 1 + k.rnd.IntN(12) {
		at := k.rnd.Int64N(killSlots) * killSlot
		if _, ok := batch[at]; ok {
			continue
		}
		r, fua := request{length: killBlock * (1 + k.rnd.Int64N(killSlot/killBlock)), fua: k.always}, ""
		if k.rnd.IntN(4) == 0 {
			r.fua, fua = true, "-f "
		}
		value := byte(1 + k.rnd.IntN(255))
		for i := at / killBlock; i < (at+r.length)/killBlock; i++ {
			k.blocks[i].later = append(k.blocks[i].later, value)
		}
		batch[at] = r
		out, err := q.do(fmt.Sprintf("aio_write %s-P %d %d %d", fua, value, at, r.length))
		if err := errors.Join(answered(out), err); err != nil {
			return err
		}
	}
	out, err := q.do("aio_flush") // which waits for them
	if err := errors.Join(answered(out), err); err != nil {
		return err
	}
	if len(batch) > 0 {
		return fmt.Errorf("%d writes of a batch were not answered: %s", len(batch), &q.stderr)
	}
	return nil
}

// last is what was written last.
func (b *blockHistory) last() byte {
	if n := len(b.later); n > 0 {
		return b.later[n-1]
	}
	return b.durable
}

func (k *killed) wasFlushed() {
	for i := range k.blocks {
		b := &k.blocks[i]
		if n := b.flushed; n > 0 {
			b.durable, b.later, b.flushed = b.later[n-1], b.later[n:], 0
		}
	}
}

// check reads the LUN, and wants each block to be as it can be.
func (k *killed) check(url string) {
	k.t.Helper()
	image := filepath.Join(k.t.TempDir(), "image")
	run(k.t, "qemu-img", "convert", "-f", "raw", "-O", "raw", url, image)
	data, err := os.ReadFile(image)
	if err != nil || len(data) != len(k.blocks)*killBlock {
		k.t.Fatalf("%d bytes, %v", len(data), err)
	}
	for i := range k.blocks {
		b, got := &k.blocks[i], data[i*killBlock:(i+1)*killBlock]
		if !bytes.Equal(got, bytes.Repeat(got[:1], killBlock)) || got[0] != b.durable && !bytes.Contains(b.later, got[:1]) {
			k.t.Errorf("LUN %d, block %d begins with %#x; want %#x, which is durable, or what came later: %#x", k.number, i, got[:8], b.durable, b.later)
		}
		if got[0] != b.last() {
			k.lost++
		}
		*b = blockHistory{durable: got[0]}
	}
	k.flushing = false
}

// clients are programs that can all be killed.
type clients struct {
	mu   sync.Mutex
	over bool
	list []*exec.Cmd
}

func (c *clients) start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return errGone
	}
	c.list = append(c.list, cmd)
	return cmd.Start()
}

func (c *clients) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for _, cmd := range c.list {
		cmd.Process.Kill()
	}
}

// TestKill kills the server (SIGKILL) in the middle of writes, many times. What
// was acknowledged as durable is there afterwards: data written with FUA, or
// before a SYNCHRONIZE CACHE that ended, or with the write cache off; and persistent
// reservations with APTPL. The LUNs lie in files, and two of them have a cache in
// front that goes with the process, so that what isn't durable is in fact lost.
func TestKill(t *testing.T) {
	needQEMU(t)
	if _, err := os.Stat("/usr/include/iscsi/iscsi.h"); err != nil {
		need.Missing(t, "libiscsi's headers are not installed: apt-get install libiscsi-dev")
	}
	need.Program(t, "gcc", "gcc")
	dir := t.TempDir()
	pr := filepath.Join(dir, "pr")
	run(t, "gcc", "-Wall", "-o", pr, "testdata/pr.c", "-liscsi")
	config := filepath.Join(dir, "lab.yaml")
	size := killSlots * killSlot
	err := os.WriteFile(config, fmt.Appendf(nil, `
targets:
- name: lab
  luns:
  - {lun: 0, store: {kind: file, path: a, size: %[1]d}}
  - {lun: 1, store: {kind: file, path: b, size: %[1]d, cache: 1MiB}, thin: true}
  - {lun: 2, store: {kind: file, path: c, size: %[1]d, cache: 1MiB}, write_cache: false}
  - {lun: 3, store: {kind: file, path: d, size: 1MiB}, state: d.state}
`, size), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var luns []*killed
	for i := range 3 {
		luns = append(luns, &killed{t: t, number: i, always: i == 2, rnd: rand.New(rand.NewPCG(1, uint64(i))), blocks: make([]blockHistory, size/killBlock)})
	}
	key, rnd := 0, rand.New(rand.NewPCG(2, 0))
	for round := range killRounds {
		s := launch(t, "-f", config, "--socket", "none")
		if s.portal == "" {
			s.kill()
			t.Fatalf("round %d: the server didn't start:\n%s", round, s.log)
		}
		goOn := func() bool {
			defer s.kill()
			for _, k := range luns {
				k.check(url(s.portal, k.number))
			}
			key = checkReservation(t, pr, url(s.portal, 3), round, key)
			if t.Failed() || round == killRounds-1 {
				return false
			}
			return killUnderLoad(t, s, luns, pr, &key, 20+rnd.Int64N(100))
		}()
		if !goOn {
			break
		}
	}
	t.Logf("%d, %d and %d blocks were lost that were not durable", luns[0].lost, luns[1].lost, luns[2].lost)
	if luns[1].lost == 0 {
		t.Error("nothing was lost of what was not durable: the test shows nothing")
	}
}

// killUnderLoad writes to the LUNs, and changes the registered key, until so many
// writes were acknowledged. Then it kills the server.
func killUnderLoad(t *testing.T, s *server, luns []*killed, pr string, key *int, writes int64) bool {
	t.Helper()
	var acknowledged atomic.Int64
	all := &clients{}
	failed := make(chan error, len(luns)+1)
	for _, k := range luns {
		go func() { failed <- k.write(url(s.portal, k.number), &acknowledged, all) }()
	}
	go func() {
		last, err := countKeys(exec.Command(pr, url(s.portal, 3), "count", strconv.Itoa(*key)), all)
		if last > 0 {
			*key = last
		}
		failed <- err
	}()
	running := len(luns) + 1
	for end := time.Now().Add(5 * time.Minute); acknowledged.Load() < writes && running == len(luns)+1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("only %d writes in 5 minutes", acknowledged.Load())
			break
		}
		select {
		case err := <-failed:
			t.Errorf("before the server was killed: %v", err)
			running--
		default:
		}
	}
	s.kill()
	all.kill()
	for range running {
		<-failed // what they say of a server that is gone means nothing
	}
	return !t.Failed()
}

// countKeys returns the last key that was acknowledged, 0 if none was.
func countKeys(cmd *exec.Cmd, all *clients) (last int, err error) {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := all.start(cmd); err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if n, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "key ")); err == nil {
			last = n
		}
	}
	return last, fmt.Errorf("pr ended: %w: %s", cmd.Wait(), &stderr)
}

// checkReservation makes a reservation in round 0. Later it wants the one with the
// last key that was acknowledged, or the next, to be there, and in the last round to
// hold: its holder can write and nobody else. It returns the key.
func checkReservation(t *testing.T, pr, url string, round, key int) int {
	t.Helper()
	if round == 0 {
		run(t, pr, url, "reserve", "1")
		return 1
	}
	shown := run(t, pr, url, "show")
	is := func(key int) bool {
		return shown == fmt.Sprintf("key %d\nreservation %d type 1\n", key, key)
	}
	if is(key + 1) {
		key++
	} else if !is(key) {
		t.Errorf("after key %d was acknowledged, and perhaps the next, there is:\n%s", key, shown)
	}
	if round < killRounds-1 {
		return key
	}
	run(t, pr, url, "write")
	other := run(t, "sh", "-c", `qemu-io -f raw -c 'write 0 512' "$0" 2>&1 || true`, url)
	if !strings.Contains(other, "write failed: ") {
		t.Errorf("another initiator could write:\n%s", other)
	}
	return key
}
