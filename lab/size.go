package lab

import "fmt"

// FormatSize writes a number of bytes in the largest unit that it is a whole
// number of, if that takes no more than four digits, and else rounded to four
// digits: "64 GiB", "1.177 MiB".
func FormatSize(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	whole, i := n, 0
	for whole != 0 && whole%1024 == 0 {
		whole, i = whole/1024, i+1
	}
	if whole < 10000 {
		return fmt.Sprintf("%d %s", whole, units[i])
	}
	v, i := float64(n), 0
	for v >= 1024 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.4g %s", v, units[i])
}
