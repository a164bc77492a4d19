package lab_test

import (
	"math"
	"testing"

	"lunlab/lab"
)

func TestFormatSize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1: "1 B", 512: "512 B", 1023: "1023 B", 1024: "1 KiB", 1025: "1025 B", 9999: "9999 B", 10001: "9.767 KiB",
		1536 << 20: "1536 MiB", 1 << 40: "1 TiB", 1234567: "1.177 MiB", 1<<20*1024 - 1: "1024 MiB",
		math.MaxUint64: "16 EiB", 1 << 63: "8 EiB",
	} {
		if got := lab.FormatSize(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
