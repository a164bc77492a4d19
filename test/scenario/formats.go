package scenario

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// WriteJSON writes the report as indented JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Stamp    string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure,omitempty"`
	Error   *junitMessage `xml:"error,omitempty"`
	Skipped *junitMessage `xml:"skipped,omitempty"`
	Out     string        `xml:"system-out,omitempty"`
	Err     string        `xml:"system-err,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// kernelLog is the name of a test for what the kernel says outside the scenarios.
const kernelLog = "kernel log"

// titles are the names of the results, told apart where there are several of one.
func (r *Report) titles() []string {
	var titles []string
	runs := map[string]int{}
	for _, res := range r.Results {
		title := res.Name
		if runs[title]++; r.Repeat > 1 {
			title = fmt.Sprintf("%s run %d", title, runs[title])
		}
		titles = append(titles, title)
	}
	return titles
}

// class is what a scenario's name begins with.
func class(name string) string {
	c, _, _ := strings.Cut(name, "/")
	return c
}

// WriteJUnit writes the report as JUnit XML: a scenario that differs is a failure,
// one that could not be carried out, or was not come to, an error.
func (r *Report) WriteJUnit(w io.Writer) error {
	s := junitSuite{
		Name:  "lunlab ktest " + r.Kernel.Release,
		Tests: len(r.Results) + len(r.NotRun) + 1,
		Time:  fmt.Sprintf("%.3f", r.Elapsed.Seconds()),
		Stamp: r.Started.UTC().Format("2006-01-02T15:04:05"),
	}
	titles := r.titles()
	for i := range r.Results {
		res := &r.Results[i]
		c := junitCase{Name: titles[i], Class: class(res.Name), Time: fmt.Sprintf("%.3f", res.Elapsed.Seconds())}
		for _, k := range res.Checks {
			c.Out += k.String() + "\n"
		}
		if res.Hang != nil {
			c.Err = strings.Join(res.Hang.Lines(), "\n")
		}
		switch res.Verdict {
		case Differs:
			s.Failures++
			d := res.Differences()
			c.Failure = &junitMessage{Message: d[0], Text: strings.Join(d, "\n")}
		case Failed:
			s.Errors++
			first, _, _ := strings.Cut(res.Error, "\n")
			c.Error = &junitMessage{Message: first, Text: res.Error}
		case Skipped:
			s.Skipped++
			c.Skipped = &junitMessage{Message: res.Error}
		}
		s.Cases = append(s.Cases, c)
	}
	for _, name := range r.NotRun {
		s.Errors++
		s.Cases = append(s.Cases, junitCase{Name: name, Class: class(name), Error: &junitMessage{Message: "not run", Text: r.Error}})
	}
	log := junitCase{Name: kernelLog, Class: "ktest"}
	if said := r.outside(); len(said) > 0 {
		s.Failures++
		log.Failure = &junitMessage{Message: said[0], Text: strings.Join(said, "\n")}
	}
	s.Cases = append(s.Cases, log)
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// oneLine is the text with its line ends as spaces: what a guest says doesn't end a
// line of the protocol.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// WriteKTAP writes the report in the kernel's Test Anything Protocol, version 1
// (Documentation/dev-tools/ktap.rst): a subtest for each scenario, and in it a
// test for each thing that was checked.
func (r *Report) WriteKTAP(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "KTAP version 1\n1..%d\n", len(r.Results)+len(r.NotRun)+1)
	ok := map[bool]string{true: "ok", false: "not ok"}
	titles := r.titles()
	for i := range r.Results {
		res := &r.Results[i]
		fmt.Fprintf(&b, "  KTAP version 1\n  # Subtest: %s\n  1..%d\n", titles[i], len(res.Checks))
		for j, c := range res.Checks {
			fmt.Fprintf(&b, "  %s %d %s\n", ok[c.OK], j+1, oneLine(strings.ReplaceAll(c.What, "#", "")))
			if !c.OK {
				diagnose(&b, "  ", c.String())
			}
		}
		for _, c := range res.Complaints {
			diagnose(&b, "  ", "kernel "+c.Kind+": "+c.Line)
		}
		diagnose(&b, "  ", res.Error)
		if res.Hang != nil {
			diagnose(&b, "  ", strings.Join(res.Hang.Lines(), "\n"))
		}
		if res.Verdict == Skipped {
			fmt.Fprintf(&b, "ok %d %s # SKIP %s\n", i+1, titles[i], oneLine(res.Error))
			continue
		}
		fmt.Fprintf(&b, "%s %d %s\n", ok[res.Verdict == AsPredicted], i+1, titles[i])
	}
	n := len(r.Results)
	for _, name := range r.NotRun {
		n++
		fmt.Fprintf(&b, "not ok %d %s\n# not run\n", n, name)
	}
	said := r.outside()
	fmt.Fprintf(&b, "%s %d %s\n", ok[len(said) == 0], n+1, kernelLog)
	diagnose(&b, "", strings.Join(said, "\n"))
	if r.Error != "" {
		diagnose(&b, "", r.Error)
		first, _, _ := strings.Cut(r.Error, "\n")
		fmt.Fprintf(&b, "Bail out! %s\n", first)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// diagnose writes a text as diagnostic lines.
func diagnose(b *strings.Builder, indent, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(b, "%s# %s\n", indent, strings.TrimRight(line, "\n"))
	}
}
