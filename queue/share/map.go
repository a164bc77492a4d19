package share

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
)

// TiePercent is how much more IOPS one rule has to reach to win.
const TiePercent = 2.0

// Summary is what a run came to under one rule.
type Summary struct {
	Rule string  `json:"rule"`
	IOPS float64 `json:"iops"`
	Jain float64 `json:"jain"`
	Latency
	MeanTags float64 `json:"mean_tags"`
	MostTags int     `json:"most_tags"`
}

// Summary leaves out the drives.
func (r Result) Summary() Summary {
	return Summary{r.Rule.Name, r.IOPS, r.Jain, r.Latency, r.MeanTags, r.MostTags}
}

// Cell is two rules on so many drives at a depth.
type Cell struct {
	Drives int        `json:"drives"`
	Depth  int        `json:"depth"`
	Under  [2]Summary `json:"under"`
	// Gain is the second rule's IOPS over the first's, in percent.
	Gain float64 `json:"gain_percent"`
	// Winner is the rule with at least [TiePercent] more IOPS; "" if none has.
	Winner string `json:"winner,omitempty"`
}

// Map compares two rules over drives and depths.
type Map struct {
	Base   Config  `json:"base"` // without its rule, drives and depth
	Rules  [2]Rule `json:"rules"`
	Drives []int   `json:"drives"`
	Depths []int   `json:"depths"`
	Cells  []Cell  `json:"cells"` // drives by drives
}

// At returns the cell of the i-th number of drives at the j-th depth.
func (m *Map) At(i, j int) Cell { return m.Cells[i*len(m.Depths)+j] }

// Compare runs base on each number of drives at each depth under both rules, on
// all CPUs. done is called after each cell, from one goroutine at a time. The
// map depends on nothing but the arguments. Its error is [Config.Validate]'s, or
// ctx's.
func Compare(ctx context.Context, base Config, rules [2]Rule, drives, depths []int, done func(cells int)) (*Map, error) {
	m := &Map{Base: base, Rules: rules, Drives: drives, Depths: depths, Cells: make([]Cell, len(drives)*len(depths))}
	configs := make([]Config, len(m.Cells))
	for i := range configs {
		configs[i] = base
		configs[i].Drives, configs[i].Depth = drives[i/len(depths)], depths[i%len(depths)]
		if err := configs[i].Validate(); err != nil {
			return nil, fmt.Errorf("%d drives at depth %d: %w", configs[i].Drives, configs[i].Depth, err)
		}
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		n    int
		errs []error
		next = make(chan int)
	)
	for range min(runtime.GOMAXPROCS(0), len(configs)) {
		wg.Go(func() {
			for i := range next {
				c, err := compare(configs[i], rules)
				mu.Lock()
				m.Cells[i] = c
				if err != nil {
					errs = append(errs, err)
				}
				n++
				done(n)
				mu.Unlock()
			}
		})
	}
	for i := range configs {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return m, errors.Join(append(errs, ctx.Err())...)
}

func compare(c Config, rules [2]Rule) (Cell, error) {
	cell := Cell{Drives: c.Drives, Depth: c.Depth}
	for i, r := range rules {
		c.Rule = r
		res, err := c.Run()
		if err != nil {
			return cell, err
		}
		cell.Under[i] = res.Summary()
	}
	if cell.Under[0].IOPS > 0 {
		cell.Gain = 100 * (cell.Under[1].IOPS/cell.Under[0].IOPS - 1)
	}
	switch {
	case cell.Gain >= TiePercent:
		cell.Winner = rules[1].Name
	case cell.Under[0].IOPS >= cell.Under[1].IOPS*(1+TiePercent/100):
		cell.Winner = rules[0].Name
	}
	return cell, nil
}
