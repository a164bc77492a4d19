package queue_test

import (
	"strings"
	"testing"

	"lunlab/queue"
)

func TestValidate(t *testing.T) {
	ok := queue.Limits{CanQueue: 64, CmdPerLUN: 64, HWQueues: 1}
	for _, c := range []struct {
		name string
		edit func(*queue.Limits)
		want []string // parts of the error; none: valid
	}{
		{"plain", func(*queue.Limits) {}, nil},
		{"cmd_per_lun above can_queue", func(l *queue.Limits) { l.CmdPerLUN = 128 }, nil},
		{"cmd_per_lun 0", func(l *queue.Limits) { l.CmdPerLUN = 0 }, nil},
		{"can_queue 0", func(l *queue.Limits) { l.CanQueue = 0 }, []string{"can_queue 0: want 1 to 2147483647"}},
		{"cmd_per_lun past a short", func(l *queue.Limits) { l.CmdPerLUN = 32768 }, []string{"cmd_per_lun 32768: want 0 to 32767"}},
		{"no queues", func(l *queue.Limits) { l.HWQueues = 0 }, []string{"nr_hw_queues 0: want 1 to 65536"}},
		{"CPUs", func(l *queue.Limits) { l.CPUs = -1 }, []string{"cpus -1: want 0 to"}},
		{"depth set by nobody", func(l *queue.Limits) { l.ConfiguredDepth = 32 }, []string{"configured_depth 32: only a driver"}},
		{"two at once", func(l *queue.Limits) { l.CanQueue, l.HWQueues = -1, -1 }, []string{"can_queue -1", "nr_hw_queues -1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := ok
			c.edit(&l)
			err := l.Validate()
			if (err == nil) != (len(c.want) == 0) {
				t.Fatalf("got %v, want an error: %v", err, len(c.want) > 0)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got %q, want %q in it", err, w)
				}
			}
			if _, perr := queue.All()[0].Predict(l, 0); (perr == nil) != (err == nil) {
				t.Errorf("Predict: got %v, Validate: %v", perr, err)
			}
		})
	}
}
