package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"lunlab/test/scenario"
)

// order says which of the chosen scenarios run, in which order and how often.
type order struct {
	shard  string // "I/N", empty for all
	seed   uint64 // of the shuffle; 0 in a flag: one is chosen
	repeat int

	shuffled bool
}

func (o *order) flags(f *pflag.FlagSet) {
	f.IntVar(&o.repeat, "repeat", 1, "run all scenarios so many `times`, and say how often each came out how; with --baseline, on each kernel in turn: a difference shows in all, and three or more give an interval")
	f.StringVar(&o.shard, "shard", "", "run the `I/N`th part of the scenarios only: 1/3, 2/3 and 3/3 are all of them")
	f.Uint64Var(&o.seed, "shuffle", 0, "run them in another order, which the `seed` says; 0 takes one and prints it")
}

// apply leaves the shard's part of the scenarios, shuffled if that is asked for. It
// has to be called once, after the flags were read.
func (o *order) apply(f *pflag.FlagSet, ss []scenario.Scenario) ([]scenario.Scenario, error) {
	if o.repeat < 1 {
		return nil, fmt.Errorf("--repeat %d: has to be above 0", o.repeat)
	}
	if o.shard != "" {
		i, n, err := parseShard(o.shard)
		if err != nil {
			return nil, fmt.Errorf("--shard %s: %w", o.shard, err)
		}
		var mine []scenario.Scenario
		for at := i - 1; at < len(ss); at += n {
			mine = append(mine, ss[at])
		}
		if len(mine) == 0 {
			return nil, fmt.Errorf("--shard %s: nothing is left of %d to run", o.shard, len(ss))
		}
		ss = mine
	}
	if f.Changed("shuffle") {
		o.shuffled = true
		for o.seed == 0 {
			o.seed = uint64(rand.Uint32()) // short enough to be typed
		}
		rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(ss), func(i, j int) { ss[i], ss[j] = ss[j], ss[i] })
	}
	return ss, nil
}

// parseShard reads "I/N".
func parseShard(s string) (i, n int, err error) {
	first, second, ok := strings.Cut(s, "/")
	if ok {
		i, err = strconv.Atoi(first)
	}
	if ok && err == nil {
		n, err = strconv.Atoi(second)
	}
	switch {
	case !ok || err != nil:
		return 0, 0, errors.New("want I/N, as in 2/3")
	case n < 1 || i < 1 || i > n:
		return 0, 0, errors.New("want I from 1 to N")
	}
	return i, n, nil
}
