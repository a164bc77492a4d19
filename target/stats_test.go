package target

import (
	"testing"
	"time"
)

// TestBuckets sees that each time is within its bucket, and the bucket is narrow.
func TestBuckets(t *testing.T) {
	last := -1
	for ns := uint64(0); ns < 1<<39; ns += ns/20 + 1 {
		i := bucketOf(ns)
		if i < last || i >= latencyBuckets {
			t.Fatalf("%d ns is in bucket %d, after %d", ns, i, last)
		}
		last = i
		if end := bucketEnd(i); end <= ns || end-ns > ns/8+1 {
			t.Fatalf("%d ns is in a bucket that ends at %d", ns, end)
		}
	}
	if i := bucketOf(1 << 63); i != latencyBuckets-1 {
		t.Errorf("a very long time is in bucket %d", i)
	}
}

func TestQuantile(t *testing.T) {
	var l Latency
	if l.Quantile(0.5) != 0 {
		t.Error("there is a median of nothing")
	}
	for us := range 1000 {
		l.buckets[bucketOf(uint64(us)*1000)]++
		l.Count++
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond} {
		if got := l.Quantile(q); got < want || got > want+want/7 {
			t.Errorf("quantile %v is %v, want %v or a little more", q, got, want)
		}
	}
}
