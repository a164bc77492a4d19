package conformance

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/test/need"
)

// suiteTests is how many tests iscsi-test-cu has under ALL (libiscsi 1.19).
const suiteTests = 230

// suiteParallel is how many tests run at a time. They mostly wait.
const suiteParallel = 4

// longTest sleeps for a minute between two looks. It starts first.
const (
	longTest     = "ALL.Sanitize.Reset"
	longTimeout  = 120 * time.Second
	suiteTimeout = 40 * time.Second
)

// diskFor chooses the disk that a test wants, so that as few as may be skip.
func diskFor(test string) lun.DiskOptions {
	o := lun.DiskOptions{Thin: true}
	switch family := strings.Split(test, ".")[1]; {
	case family == "PreventAllow", family == "StartStopUnit", family == "NoMedia":
		o.Removable = true
	case test == longTest:
		// It looks after three seconds whether it is still going.
		o.EraseTime = 6 * time.Second
	case family == "ReadOnly":
		o.ReadOnly = true
	case strings.HasSuffix(test, ".InvalidDataOutSize"), strings.HasSuffix(test, ".UnmapUnaligned"):
		o.PhysicalExponent = 3
	}
	return o
}

// TestLibiscsiSuite runs all of libiscsi's iscsi-test-cu, a process and a disk
// for each test, and compares the results with testdata/iscsi-test-cu.txt.
func TestLibiscsiSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute or two")
	}
	need.Program(t, "iscsi-test-cu", "libiscsi-bin")
	expected := readExpectations(t, "testdata/iscsi-test-cu.txt")
	var tests []string
	for line := range strings.Lines(run(t, "iscsi-test-cu", "-l")) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "ALL.") && strings.Count(name, ".") == 2 {
			tests = append(tests, name)
		}
	}
	if len(tests) != suiteTests {
		t.Fatalf("iscsi-test-cu lists %d tests, not %d: another version of libiscsi, for which %s has to be looked over", len(tests), suiteTests, "testdata/iscsi-test-cu.txt")
	}
	listed := map[string]bool{}
	for _, name := range tests {
		listed[name] = true
	}
	for name := range expected {
		if !listed[name] {
			t.Errorf("testdata/iscsi-test-cu.txt has %s, which iscsi-test-cu hasn't", name)
		}
	}
	if i := slices.Index(tests, longTest); i > 0 {
		tests[0], tests[i] = tests[i], tests[0]
	}
	slots := make(chan struct{}, suiteParallel)
	t.Run("ALL", func(t *testing.T) {
		for _, name := range tests {
			t.Run(strings.TrimPrefix(name, "ALL."), func(t *testing.T) {
				t.Parallel()
				if name != longTest {
					slots <- struct{}{}
					defer func() { <-slots }()
				}
				want, ok := expected[name]
				if !ok {
					want.result = "pass"
				}
				got, out := suiteTest(t, name)
				switch {
				case got == want.result:
				case got == "pass":
					t.Errorf("passes now: take it out of testdata/iscsi-test-cu.txt (%s: %s)", want.result, want.reason)
				default:
					t.Errorf("got %s, want %s\n%s", got, want.result, out)
				}
			})
		}
	})
}

// suiteTest runs one test of the suite: pass, skip or fail.
func suiteTest(t *testing.T, name string) (result, out string) {
	t.Helper()
	portals := 1
	if strings.Contains(name, ".MultipathIO.") {
		portals = 2
	}
	limit := suiteTimeout
	if name == longTest {
		limit = longTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := []string{"-d", "-S", "-V", "-f", "--test=" + name}
	for _, p := range serveHere(t, portals, 1<<30, diskFor(name)) {
		args = append(args, url(p, 0))
	}
	b, err := exec.CommandContext(ctx, "iscsi-test-cu", args...).CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "hang", string(b)
	case err != nil && !errors.As(err, &exit):
		t.Fatal(err)
	case err != nil || !ran.Match(b):
		return "fail", string(b)
	case strings.Contains(string(b), "[SKIPPED]"):
		return "skip", string(b)
	}
	return "pass", string(b)
}

// ran matches the summary's row of a run in which one test ran and passed.
var ran = regexp.MustCompile(`(?m)^\s+tests\s+1\s+1\s+1\s+0\s+0$`)

type expectation struct{ result, reason string }

// readExpectations reads lines of: test, skip or fail, reason.
func readExpectations(t *testing.T, path string) map[string]expectation {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := map[string]expectation{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 || f[1] != "skip" && f[1] != "fail" {
			t.Fatalf("%s: %q isn't test, skip or fail, reason", path, line)
		}
		if _, twice := m[f[0]]; twice {
			t.Fatalf("%s: %s is there twice", path, f[0])
		}
		m[f[0]] = expectation{f[1], strings.Join(f[2:], " ")}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return m
}
