package scenario

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The reports in testdata are those of fio 3.33.
func TestFioResult(t *testing.T) {
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	exit := errors.New("exit status 1")
	good, corrupt := read("fio-good.json"), read("fio-corrupt.json")
	for _, c := range []struct {
		name string
		out  []byte
		said string
		exit error
		is   error
		want string
	}{
		{name: "good", out: good},
		{name: "corrupt", out: corrupt, said: string(read("fio-corrupt.stderr")), exit: exit, is: errCorrupt, want: "Expected CRC: b42d709e"},
		{name: "not started", said: "fio: engine io_uring not loadable\n", exit: exit, is: exit, want: "io_uring not loadable"},
		{name: "killed", out: good[:200], exit: exit, is: exit},
		{name: "cut off", out: good[:200], want: "report"},
		{name: "no jobs", out: []byte("{}"), want: "no jobs"},
		{name: "I/O error", out: []byte(`{"jobs": [{"error": 5}]}`), said: "fio: io_u error on file /dev/sda\n", exit: exit, is: syscall.EIO, want: "io_u error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := fioResult(c.out, c.said, c.exit)
			if c.is == nil && c.want == "" {
				// Of 256 reads, two and a half are slower than the 99th percentile.
				want := fioReport{IOPS: 5565.217391, Latency: &Latency{
					Reads: 256, MeanNS: 175942.789063, MaxNS: 1878487, Percentiles: []Percentile{{50, 130560}, {90, 201728}},
				}}
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				return
			}
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %v with %q", err, c.is, c.want)
			}
		})
	}
}

// A percentile is never above the slowest.
func TestFioLatency(t *testing.T) {
	out := `{"jobs": [{"read": {"iops": 1, "clat_ns": {"N": 1012, "max": 341000000, "percentile": {"99.000000": 341835776}}}}]}`
	got, err := fioResult([]byte(out), "", nil)
	want := &Latency{Reads: 1012, MaxNS: 341000000, Percentiles: []Percentile{{99, 341000000}}}
	if diff := cmp.Diff(want, got.Latency); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// fio would make a plain file of a disk that isn't there.
func TestFioWantsABlockDevice(t *testing.T) {
	for _, disk := range []string{"/dev/null", t.TempDir(), filepath.Join(t.TempDir(), "sdx")} {
		if _, err := (fioJob{disk: disk, depth: 1, jobs: 1}).run(t.Context()); err == nil {
			t.Errorf("fio ran on %s", disk)
		}
	}
}

func FuzzFioResult(f *testing.F) {
	f.Add([]byte(`x {"jobs": [{"error": 0, "read": {"iops": 1.5}}]} y`), "fio: z")
	f.Fuzz(func(t *testing.T, out []byte, said string) {
		if got, err := fioResult(out, said, nil); err == nil && len(out) == 0 {
			t.Errorf("%+v of nothing", got)
		}
	})
}
