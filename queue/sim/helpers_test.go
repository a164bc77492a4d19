package sim_test

import (
	"testing"

	"lunlab/queue"
	"lunlab/queue/sim"
)

func rules(t *testing.T, name string) queue.Rules {
	t.Helper()
	r, err := queue.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func host(t *testing.T, name string) sim.Host {
	t.Helper()
	h, err := sim.LookupHost(name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}
