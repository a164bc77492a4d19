package scenario

import (
	"fmt"
	"slices"
	"strings"
)

// row is what a table shows of a scenario, however often it was run: the first of
// its results that is the worst.
type row struct {
	*Result
	verdict string // "as predicted", or "as predicted 3 of 5, differs 2"
	runs    []*Result
}

// verdicts are all of them, the worst first.
var verdicts = []string{Failed, Differs, Skipped, AsPredicted}

// rows are the scenarios in the order of their first results.
func (r *Report) rows() []row {
	var rows []row
	for i := range r.Results {
		res := &r.Results[i]
		at := slices.IndexFunc(rows, func(o row) bool { return o.Name == res.Name })
		if at < 0 {
			rows = append(rows, row{Result: res})
			at = len(rows) - 1
		}
		o := &rows[at]
		o.runs = append(o.runs, res)
		if slices.Index(verdicts, res.Verdict) < slices.Index(verdicts, o.Verdict) {
			o.Result = res
		}
	}
	for i := range rows {
		rows[i].verdict = rows[i].countVerdicts()
	}
	return rows
}

// countVerdicts says how often each verdict came, the best first.
func (o *row) countVerdicts() string {
	if len(o.runs) == 1 {
		return o.Verdict
	}
	var said []string
	for _, v := range slices.Backward(verdicts) {
		n := 0
		for _, res := range o.runs {
			if res.Verdict == v {
				n++
			}
		}
		switch {
		case n > 0 && said == nil:
			said = append(said, fmt.Sprintf("%s %d of %d", v, n, len(o.runs)))
		case n > 0:
			said = append(said, fmt.Sprintf("%s %d", v, n))
		}
	}
	return strings.Join(said, ", ")
}

// flaky says whether the runs of the scenario came out differently.
func (o *row) flaky() bool {
	return slices.ContainsFunc(o.runs, func(res *Result) bool { return res.Verdict != o.Verdict })
}

// findings are what was not as predicted in any of the runs, each once.
func (o *row) findings() []finding {
	var found []finding
	times := map[string]int{}
	note := func(text string) {
		if times[text]++; times[text] == 1 {
			found = append(found, finding{o.Name, text})
		}
	}
	for _, res := range o.runs {
		if res.Error != "" {
			note(res.Error)
			continue
		}
		for _, d := range res.Differences() {
			note(d)
		}
	}
	for i, f := range found {
		if len(o.runs) > 1 {
			found[i].Text = fmt.Sprintf("%s (%d of %d)", f.Text, times[f.Text], len(o.runs))
		}
	}
	if o.Hang != nil && o.Verdict != AsPredicted {
		found = append(found, finding{o.Name, "what hung:\n" + strings.Join(o.Hang.Lines(), "\n")})
	}
	return found
}
