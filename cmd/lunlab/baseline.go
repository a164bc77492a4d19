package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lunlab/test/kernel"
	"lunlab/test/scenario"
)

// againstBaseline runs the scenarios on two kernels in turn, repeat times, and
// reports what differs.
type againstBaseline struct {
	kernel, baseline kernel.Config
	repeat           int
	console          string
	opts             scenario.Options
}

func (a *againstBaseline) run(ctx context.Context, ss []scenario.Scenario, out *reports, p *progress) error {
	sides := []struct {
		name string
		cfg  kernel.Config
		runs []*scenario.Report
	}{{name: "baseline", cfg: a.baseline}, {name: "kernel", cfg: a.kernel}}
	var err error
runs:
	for i := range a.repeat {
		for j := range sides {
			s := &sides[j]
			p.logf("%s, run %d of %d", s.name, i+1, a.repeat)
			report := &scenario.Report{Started: time.Now()}
			console := a.console
			if s.name == "baseline" && console != "" {
				console += ".baseline"
			}
			err = ktestGuest(ctx, s.cfg, console, p.logf, ss, a.opts, report, func(e scenario.Event) {
				p.event(e)
				report.Take(e)
			})
			report.End(ss, err)
			s.runs = append(s.runs, report)
			if err != nil {
				err = fmt.Errorf("%s: %w", s.name, err)
				break runs
			}
		}
	}
	p.clear()
	c := scenario.Compare(sides[0].runs, sides[1].runs)
	if err := errors.Join(err, out.common(c.WriteTable, c.WriteJSON, c.WriteHTML)); err != nil {
		return err
	}
	if s := c.ExitStatus(); s != 0 {
		return exitStatus(s)
	}
	return nil
}
