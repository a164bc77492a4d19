package sbitmap_test

import (
	"math/rand/v2"
	"testing"

	"lunlab/queue"
	"lunlab/queue/sbitmap"
)

// No bit is given twice, none is lost, and none is refused while one is free.
func TestBitsAreKept(t *testing.T) {
	for _, depth := range []int{1, 3, 4, 31, 64, 65, 200, 1000} {
		rng := rand.New(rand.NewPCG(uint64(depth), 0))
		const cpus = 4
		b := sbitmap.New(depth, queue.MapShift(depth), cpus, rng.IntN)
		var held []int
		holders := map[int]int{}
		for i := range 4000 {
			cpu := rng.IntN(cpus)
			if rng.IntN(2) == 0 || len(held) == 0 || i%1000 < 400 {
				nr := b.Get(cpu, func(int) bool { return false })
				switch {
				case nr < 0 && len(held) < depth:
					t.Fatalf("depth %d: refused with %d held", depth, len(held))
				case nr >= depth || nr >= 0 && holders[nr] > 0:
					t.Fatalf("depth %d: got %d, held %d times", depth, nr, holders[nr])
				case nr >= 0:
					held, holders[nr] = append(held, nr), 1
				}
			} else {
				k := rng.IntN(len(held))
				nr := held[k]
				held = append(held[:k], held[k+1:]...)
				delete(holders, nr)
				b.Put(cpu, nr)
			}
			if b.Weight() != len(held) {
				t.Fatalf("depth %d: weight %d with %d held", depth, b.Weight(), len(held))
			}
		}
		if err := b.Check(holders); err != nil {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}

func TestGetStops(t *testing.T) {
	b := sbitmap.New(256, 6, 1, func(int) int { return 0 })
	for range 256 {
		b.Get(0, func(int) bool { return false })
	}
	looks := 0
	if nr := b.Get(0, func(int) bool { looks++; return looks == 2 }); nr >= 0 || looks != 2 {
		t.Errorf("got %d after %d words, want none after 2", nr, looks)
	}
}
