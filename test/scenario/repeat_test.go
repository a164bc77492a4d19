package scenario

import (
	"errors"
	"strings"
	"testing"
)

// A scenario that was run several times has one row, which says how often it came
// out how, and a note for each difference.
func TestRepeated(t *testing.T) {
	r := &Report{Repeat: 3, Seed: 7}
	take := func(name string, ok bool, err string) {
		res := Result{Name: name, Error: err}
		res.check("depth", 8, map[bool]int{true: 8, false: 64}[ok], "")
		res.judge()
		r.Take(Event{Result: &res})
	}
	for _, ok := range []bool{true, false, false} {
		take("depth/sweep", ok, "")
		take("busy/zero", true, "")
	}
	take("eh/abort", true, "")
	take("eh/abort", true, "attach: no disk")
	var ss []Scenario
	for range 3 {
		ss = append(ss, Scenario{Name: "depth/sweep"}, Scenario{Name: "busy/zero"}, Scenario{Name: "eh/abort"})
	}
	r.End(ss, errors.New("not done"))
	var table, ktap strings.Builder
	if err := errors.Join(r.WriteTable(&table), r.WriteKTAP(&ktap)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"order    --shuffle 7\n",
		"depth/sweep  as predicted 1 of 3, differs 2 ",
		"busy/zero    as predicted 3 of 3 ",
		"eh/abort     as predicted 1 of 2, failed 1 ",
		"! depth/sweep: depth: predicted 8, observed 64 (2 of 3)\n",
		"! eh/abort: attach: no disk (1 of 2)\n",
		"1 of 3 scenarios as predicted in each of 3 runs, 2 not the same each time, 1 not run",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, table.String())
		}
	}
	for _, want := range []string{"ok 1 depth/sweep run 1\n", "not ok 3 depth/sweep run 2\n", "not ok 9 eh/abort\n# not run\n"} {
		if !strings.Contains(ktap.String(), want) {
			t.Errorf("the KTAP report does not say %q:\n%s", want, ktap.String())
		}
	}
	if got := r.ExitStatus(); got != ExitCouldNotRun {
		t.Errorf("exit status %d, want 2", got)
	}
}
