package target_test

import (
	"sync"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/target"
)

// echo is a unit that does nothing.
type echo struct{}

func (echo) Execute(c *lun.Command)             { c.Status = lun.Good }
func (echo) DataLength([]byte) (out, in uint64) { return 0, 0 }
func (echo) Blocking() bool                     { return false }
func (echo) Notify(*lun.Nexus, lun.Event)       {}

func TestMeterHolds(t *testing.T) {
	m := target.NewMeter(echo{})
	m.Hold()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { m.Execute(&lun.Command{}) })
	}
	n, err := target.Settle(t.Context(), m.InFlight, 100, 20*time.Millisecond, 10*time.Second)
	if n != 100 || err != nil {
		t.Fatalf("Settle: %d in flight, %v; want 100", n, err)
	}
	if m.Done() != 0 {
		t.Errorf("%d commands ended while they were held", m.Done())
	}
	m.Release()
	wg.Wait()
	if m.InFlight() != 0 || m.Done() != 100 || m.Most() != 100 {
		t.Errorf("at rest: %d in flight, %d done, most %d; want 0, 100, 100", m.InFlight(), m.Done(), m.Most())
	}
	m.Mark()
	m.Execute(&lun.Command{})
	if m.Most() != 1 {
		t.Errorf("most since the mark: %d, want 1", m.Most())
	}
}

func TestMeterLetsCancelledGo(t *testing.T) {
	m := target.NewMeter(echo{})
	m.Hold()
	cancel := make(chan struct{})
	done := make(chan struct{})
	go func() {
		m.Execute(&lun.Command{Cancel: cancel})
		close(done)
	}()
	close(cancel)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("a cancelled command is still held")
	}
}

// A count that stays below what was hoped for is still reported.
func TestSettleGivesUp(t *testing.T) {
	m := target.NewMeter(echo{})
	m.Hold()
	done := make(chan struct{})
	go func() {
		m.Execute(&lun.Command{})
		close(done)
	}()
	n, err := target.Settle(t.Context(), m.InFlight, 2, 10*time.Millisecond, 100*time.Millisecond)
	if n != 1 || err != nil {
		t.Errorf("Settle: %d, %v; want 1", n, err)
	}
	m.Release()
	<-done
}
