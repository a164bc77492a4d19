package iscsi

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	for _, tt := range []struct {
		wait, retain uint32
		want         time.Duration
	}{{0, 0, 0}, {2, 20, 22 * time.Second}, {3600, 60, 2 * time.Minute}} {
		p := Params{DefaultTime2Wait: tt.wait, DefaultTime2Retain: tt.retain}
		if got := p.patience(); got != tt.want {
			t.Errorf("DefaultTime2Wait=%d, DefaultTime2Retain=%d: %v, want %v", tt.wait, tt.retain, got, tt.want)
		}
	}
}
