package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	for line, want := range map[string]struct {
		task   Task
		parent int
		ok     bool
	}{
		"12 (kworker/u8:1-ev) D 2 0 0 0 -1 69238880": {Task{ID: 12, Name: "kworker/u8:1-ev", State: "D"}, 2, true},
		"213 (a) b (c) S 7 213":                      {Task{ID: 213, Name: "a) b (c", State: "S"}, 7, true},
		"213 (fio)":                                  {},
		"213 (fio) S x":                              {},
		"(fio) S 1":                                  {},
		")(":                                         {},
		"":                                           {},
	} {
		task, parent, ok := parseStat(line)
		if ok != want.ok || ok && (cmp.Diff(want.task, task) != "" || parent != want.parent) {
			t.Errorf("%q: %+v, %d, %v; want %+v", line, task, parent, ok, want)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (kworker/u8:1-ev) D 2 0 0 0 -1 69238880")
	f.Fuzz(func(t *testing.T, line string) {
		if task, _, ok := parseStat(line); ok && !strings.Contains(line, "("+task.Name+")") {
			t.Errorf("%q: %+v", line, task)
		}
	})
}

// The tags come from the list of requests in flight, as Linux 6.12 prints it, and
// not from that of requests which wait.
func TestTagsByCDB(t *testing.T) {
	h := &Hang{Hosts: []HungHost{{Devices: []HungDevice{{Queue: []Fact{
		{What: "hctx0/dispatch", Value: "00000000de844b7a {.op=READ, .cmd_flags=NOWAIT|ALLOC_CACHE, .rq_flags=IO_STAT, .state=idle, .tag=46, .internal_tag=-1, .flags=}"},
		{What: "hctx0/busy", Value: `000000006e2c540e {.op=READ, .cmd_flags=NOWAIT|ALLOC_CACHE, .rq_flags=DONTPREP|IO_STAT|STATS, .state=in_flight, .tag=42, .internal_tag=-1, .cmd=Read(10) 28 00 00 00 08 00 00 00 08 00, .retries=0, .allowed=5, .result = 0x0, .timeout=600.000, allocated 13.000 s ago, .flags=TAGGED|INITIALIZED|LAST}
00000000f66a28cc {.op=READ, .cmd_flags=NOWAIT|ALLOC_CACHE, .rq_flags=DONTPREP|IO_STAT|STATS, .state=in_flight, .tag=43, .internal_tag=-1, .cmd=Read(10) 28 00 00 00 08 08 00 00 08 00, .retries=0, .allowed=5, .result = 0x0, .timeout=600.000, allocated 13.000 s ago, .flags=TAGGED|INITIALIZED|LAST}`},
		{What: "hctx1/busy", Value: `0000000017d362f3 {.op=READ, .cmd_flags=NOWAIT|ALLOC_CACHE, .rq_flags=DONTPREP|IO_STAT|STATS, .state=in_flight, .tag=7, .internal_tag=-1, .cmd=Read(10) 28 00 00 00 08 08 00 00 08 00, .retries=0, .allowed=5, .result = 0x0, .timeout=600.000, allocated 13.000 s ago, .flags=TAGGED|INITIALIZED|LAST}`},
	}}}}}}
	want := map[string][]int{"28000000080000000800": {42}, "28000000080800000800": {43, 7}}
	if diff := cmp.Diff(want, h.tagsByCDB()); diff != "" {
		t.Errorf("tags (-want +got):\n%s", diff)
	}
}
