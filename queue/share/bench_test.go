package share

import (
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/queue"
)

// cacheLine is large enough for two lines, which some CPUs fetch together.
const cacheLine = 128

// part is what a thread of a benchmark does, so many times. It is called once
// for each thread, and what it returns runs on it.
type part func(thread int) func(n int)

// Those that are compared have their turns in rounds. In each they do chunks until
// enough CPU time was measured, or too much time has passed.
const (
	rounds    = 9
	chunk     = 2000
	enough    = 60 * time.Millisecond
	tooLong   = 300 * time.Millisecond
	leastSeen = 3 // rounds in which something was measured
)

// pinned runs the parts on so many threads, each on a CPU of its own, in turns. It
// returns for each the CPU time of one of its steps while all threads ran at once:
// the median of the rounds, in nanoseconds. On a machine that is too busy for all
// to run at once it skips the benchmark.
func pinned(b *testing.B, threads int, parts ...part) []float64 {
	b.Helper()
	b.ReportMetric(0, "ns/op") // of how often it was done, which says nothing
	cpus := allowed(b)
	all := make([][]float64, len(parts))
	for range rounds {
		for i, p := range parts {
			if steps, took := together(cpus, threads, p); steps > 0 {
				all[i] = append(all[i], float64(took)/float64(steps))
			}
		}
	}
	var took []float64
	for _, t := range all {
		if len(t) < leastSeen {
			b.Skipf("the machine is too busy for %d threads to run at once", threads)
		}
		slices.Sort(t)
		took = append(took, t[len(t)/2])
	}
	return took
}

// progress is how many chunks a thread has done.
type progress struct {
	n atomic.Int64
	_ [cacheLine - 8]byte
}

// together runs p on so many threads, and measures the chunks during which each of
// the others has done some too. It returns their steps and CPU time.
func together(cpus []int, threads int, p part) (steps int64, took time.Duration) {
	var (
		wg                sync.WaitGroup
		done              = make([]progress, threads)
		ready             atomic.Int32
		stop              atomic.Bool
		allSteps, allTook atomic.Int64
		start             = time.Now()
	)
	for i := range threads {
		f := p(i)
		wg.Go(func() {
			runtime.LockOSThread() // and the thread ends with its affinity
			var set unix.CPUSet
			set.Set(cpus[i])
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				panic(err)
			}
			for ready.Add(1); ready.Load() < int32(threads); {
				runtime.Gosched()
			}
			var counted int64
			before, now := make([]int64, threads), make([]int64, threads)
			read(done, before)
			was := threadTime()
			for !stop.Load() {
				f(chunk)
				done[i].n.Add(1)
				read(done, now)
				is := threadTime()
				if moved(before, now) {
					counted += int64(is - was)
					allSteps.Add(chunk)
				}
				before, now, was = now, before, is
				if counted >= int64(enough) || time.Since(start) > tooLong {
					stop.Store(true)
				}
			}
			allTook.Add(counted)
		})
	}
	wg.Wait()
	return allSteps.Load(), time.Duration(allTook.Load())
}

func read(done []progress, into []int64) {
	for i := range done {
		into[i] = done[i].n.Load()
	}
}

// moved says whether all have done something in between.
func moved(before, now []int64) bool {
	for i := range before {
		if before[i] == now[i] {
			return false
		}
	}
	return true
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// allowed is the CPUs that the benchmark may run on.
func allowed(b *testing.B) []int {
	b.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		b.Fatal(err)
	}
	var cpus []int
	for i := range 64 * len(set) {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// onThreads runs f with 1, 2, 4 … threads, as many as there are CPUs, which it
// reports.
func onThreads(b *testing.B, f func(b *testing.B, threads int)) {
	cpus := len(allowed(b))
	for n := 1; n <= cpus; n *= 2 {
		b.Run(fmt.Sprintf("threads=%d", n), func(b *testing.B) {
			f(b, n)
			b.ReportMetric(float64(cpus), "CPUs")
		})
	}
}

// A request queue's counter of active requests, with and without a line of its
// own, beside fields that each I/O reads.
type hotCounter struct {
	_     [cacheLine]byte
	count atomic.Int32
	field atomic.Uint32
	_     [cacheLine]byte
}

type aloneCounter struct {
	_     [cacheLine]byte
	count atomic.Int32
	_     [cacheLine]byte
	field atomic.Uint32
	_     [cacheLine]byte
}

type perCPU struct {
	n int32
	_ [cacheLine - 4]byte
}

var sink atomic.Uint32

// BenchmarkCounter is what an I/O pays for being counted in and out, with
// real atomics: in a counter that shares its cache line with fields that each I/O
// reads (nr_active_requests_shared_tags as it is), in one alone on its line, in a
// per-CPU counter, and not at all.
func BenchmarkCounter(b *testing.B) {
	onThreads(b, func(b *testing.B, threads int) {
		var (
			hot    hotCounter
			alone  aloneCounter
			folded atomic.Int64
		)
		counts := make([]perCPU, threads)
		batch := int32(queue.PerCPUBatch(runtime.NumCPU()))
		counted := func(count *atomic.Int32, field *atomic.Uint32) part {
			return func(int) func(int) {
				return func(n int) {
					var sum uint32
					for range n {
						sum += field.Load()
						count.Add(1)
						sum += field.Load()
						count.Add(-1)
					}
					sink.Add(sum)
				}
			}
		}
		local := func(i int) func(int) {
			return func(n int) {
				var sum uint32
				for range n {
					sum += alone.field.Load()
					add(&counts[i].n, batch, &folded)
					sum += alone.field.Load()
					add(&counts[i].n, batch, &folded)
				}
				sink.Add(sum)
			}
		}
		none := func(int) func(int) {
			return func(n int) {
				var sum uint32
				for range n {
					sum += alone.field.Load()
					sum += alone.field.Load()
				}
				sink.Add(sum)
			}
		}
		took := pinned(b, threads, counted(&hot.count, &hot.field), counted(&alone.count, &alone.field), local, none)
		b.ReportMetric(took[0], "hot-ns/IO")
		b.ReportMetric(took[1], "alone-ns/IO")
		b.ReportMetric(took[2], "percpu-ns/IO")
		b.ReportMetric(took[3], "none-ns/IO")
		b.ReportMetric(took[0]/took[1], "hot/alone")
		b.ReportMetric(took[1]/took[2], "alone/percpu")
	})
}

// add is percpu_counter_inc.
//
//go:noinline
func add(part *int32, batch int32, folded *atomic.Int64) {
	if *part+1 < batch {
		*part++
		return
	}
	folded.Add(int64(*part) + 1)
	*part = 0
}

// atomicMap is a struct sbitmap with real atomics: words and what was put of them
// on lines of their own, a hint for each thread.
type atomicMap struct {
	depth, shift int
	words        []mapWord
	hints        []perCPU
}

type mapWord struct {
	word    atomic.Uint64
	_       [cacheLine - 8]byte
	cleared atomic.Uint64
	_       [cacheLine - 8]byte
	lock    sync.Mutex
}

func newAtomicMap(depth, threads int) *atomicMap {
	m := &atomicMap{depth: depth, shift: queue.MapShift(depth)}
	m.words = make([]mapWord, (depth+1<<m.shift-1)>>m.shift)
	m.hints = make([]perCPU, threads)
	for i := range m.hints {
		m.hints[i].n = int32(i * depth / threads)
	}
	return m
}

// get is sbitmap_get: a bit, or -1.
func (m *atomicMap) get(thread int) int {
	hint := int(m.hints[thread].n)
	w, from := hint>>m.shift, hint&(1<<m.shift-1)
	for range m.words {
		if bit := m.getWord(w, from); bit >= 0 {
			nr := w<<m.shift + bit
			if nr == hint {
				if hint++; hint >= m.depth-1 {
					hint = 0
				}
				m.hints[thread].n = int32(hint)
			}
			return nr
		}
		from = 0
		if w++; w == len(m.words) {
			w = 0
		}
	}
	m.hints[thread].n = 0
	return -1
}

func (m *atomicMap) getWord(i, from int) int {
	w := &m.words[i]
	mask := ^uint64(0) >> (64 - min(m.depth-i<<m.shift, 1<<m.shift))
	for {
		for {
			free := ^w.word.Load() & mask &^ (1<<from - 1)
			if free == 0 {
				if from == 0 {
					break
				}
				from = 0
				continue
			}
			bit := bits.TrailingZeros64(free)
			if w.word.Or(1<<bit)>>bit&1 == 0 {
				return bit
			}
		}
		if w.cleared.Load() == 0 {
			return -1
		}
		w.lock.Lock()
		w.word.And(^w.cleared.Swap(0))
		w.lock.Unlock()
	}
}

// put is sbitmap_put.
func (m *atomicMap) put(thread, nr int) {
	m.words[nr>>m.shift].cleared.Or(1 << (nr & (1<<m.shift - 1)))
	m.hints[thread].n = int32(nr)
}

// The map of the benchmark gives no bit to two threads.
func TestAtomicMap(t *testing.T) {
	for _, depth := range []int{1, 5, 32, 100} {
		const threads = 4
		m := newAtomicMap(depth, threads)
		held := make([]atomic.Int32, depth)
		var (
			wg  sync.WaitGroup
			got atomic.Int64
		)
		for i := range threads {
			wg.Go(func() {
				for range 3000 {
					nr := m.get(i)
					if nr < 0 {
						continue
					}
					got.Add(1)
					if held[nr].Add(1) != 1 {
						t.Errorf("depth %d: %d is held twice", depth, nr)
					}
					held[nr].Add(-1)
					m.put(i, nr)
				}
			})
		}
		wg.Wait()
		if got.Load() == 0 {
			t.Errorf("depth %d: nothing was got", depth)
		}
	}
}

// BenchmarkBudgetMap is what a command pays for its budget token, with real
// atomics: get and put of a map of the depth, with 8 commands of each thread (or its
// part of the depth) in flight, against a device without a map.
func BenchmarkBudgetMap(b *testing.B) {
	for _, depth := range []int{32, 256, 1024} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			onThreads(b, func(b *testing.B, threads int) {
				m := newAtomicMap(depth, threads)
				flight := max(min(8, depth/threads), 1)
				commands := func(get func(thread int) int, put func(thread, nr int)) part {
					return func(i int) func(int) {
						return func(n int) {
							ring := make([]int, flight)
							for k := range ring {
								ring[k] = get(i)
							}
							for k := range n {
								at := k % flight
								put(i, ring[at])
								for ring[at] = get(i); ring[at] < 0; ring[at] = get(i) {
								}
							}
							for _, nr := range ring {
								put(i, nr)
							}
						}
					}
				}
				took := pinned(b, threads, commands(m.get, m.put), commands(noToken, func(int, int) {}))
				b.ReportMetric(took[0], "map-ns/cmd")
				b.ReportMetric(took[1], "no-map-ns/cmd")
				b.ReportMetric(took[0]/took[1], "map/no-map")
			})
		})
	}
}

//go:noinline
func noToken(int) int { return queue.NoToken }
