//go:build !race

package share

import (
	"context"
	"testing"
)

func gain(t *testing.T, c Config, drives, depth int) float64 {
	t.Helper()
	fair, series := config("fair", 1, 1).Rule, config("series", 1, 1).Rule
	m, err := Compare(context.Background(), c, [2]Rule{fair, series}, []int{drives}, []int{depth}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	return m.At(0, 0).Gain
}

// What README says of the turn between 8 and 16 drives.
func TestTurn(t *testing.T) {
	c := config("fair", 1, 1)
	want := func(c Config, drives, depth int, lo, hi float64) {
		t.Helper()
		if g := gain(t, c, drives, depth); g < lo || g > hi {
			t.Errorf("%d drives at depth %d, %d tags: %+.1f%%, want %v to %v", drives, depth, c.Tags, g, lo, hi)
		}
	}
	want(c, 8, 128, 14, 20)
	want(c, 16, 64, -1, 1)
	want(c, 16, 128, -6, -1)
	want(c, 32, 64, -11, -4)
	more := c
	more.Tags = 2048
	want(more, 8, 128, 13, 20)
	want(more, 16, 128, -1, 1)
	busy := c
	busy.Params.CPUs = 16
	want(busy, 16, 128, 8, 18)
	free := c
	free.Params.Near, free.Params.Far = 0, 0
	want(free, 16, 128, -1, 1)
	want(free, 8, 128, -1, 4)
	unequal := c
	unequal.Load = Slow
	want(unequal, 16, 128, -14, -4)
	bursts := c
	bursts.Load = Bursts
	want(bursts, 16, 128, 30, 70)
}
