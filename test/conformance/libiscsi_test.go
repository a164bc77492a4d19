package conformance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lunlab/test/need"
)

// suiteTests is how many tests iscsi-test-cu has under ALL (libiscsi 1.19).
const suiteTests = 230

// suiteParallel is how many tests run at a time. They mostly wait.
const suiteParallel = 4

// longTest sleeps for a minute between two looks at what FORMAT UNIT and SANITIZE
// have to be busy with a few seconds after they began.
const longTest = "Sanitize.Reset"

// suiteTimeout is for a test that hangs.
const suiteTimeout = 5 * time.Minute

// suiteOutput is how much of a test's output is shown when it fails, in bytes.
const suiteOutput = 16 << 10

// racyTest hangs up, logs in again and expects at once that the target has taken
// notice of both in that order.
const racyTest = "PreventAllow.ITNexusLoss"

// lunKind is a kind of LUN that the suite runs on. Its size is that of more blocks
// than WRITE SAME can write at once, and little to overwrite.
type lunKind struct {
	name string
	disk string // as in lab.yaml
	size string
}

// lunKinds begins with the one that the iSCSI family runs on, which isn't about
// LUNs.
var lunKinds = []lunKind{
	{"thin", "thin: true", "64MiB"},
	{"4096", "thin: true, block_size: 4096", "512MiB"},
	{"read-only", "thin: true, read_only: true", "64MiB"},
	{"removable", "thin: true, removable: true", "64MiB"},
	{"protection", "thin: true, protection: 1", "64MiB"},
	{"ata", "thin: true, ata: {}", "64MiB"},
}

// TestLibiscsiSuite runs libiscsi's iscsi-test-cu on LUNs of all kinds, a process
// and a LUN for each test, and compares the results with
// testdata/iscsi-test-cu.txt.
func TestLibiscsiSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a few minutes")
	}
	need.Program(t, "iscsi-test-cu", "libiscsi-bin")
	var tests []string
	for line := range strings.Lines(run(t, "iscsi-test-cu", "-l")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "ALL."); ok && strings.Contains(name, ".") {
			tests = append(tests, name)
		}
	}
	if len(tests) != suiteTests {
		t.Fatalf("iscsi-test-cu lists %d tests, not %d: another version of libiscsi, for which %s has to be looked over", len(tests), suiteTests, expectations)
	}
	expected, tailored := readExpectations(t, expectations)
	passed, failed, wrong := map[string]*atomic.Int32{}, map[string]*atomic.Int32{}, map[string]bool{}
	for _, name := range tests {
		passed[name], failed[name] = new(atomic.Int32), new(atomic.Int32)
	}
	slots := make(chan struct{}, suiteParallel)
	// Not t.Parallel, which counts tests that sleep too.
	var all sync.WaitGroup
	for _, name := range tests {
		for _, kind := range lunKinds {
			if strings.HasPrefix(name, "iSCSI") && kind.name != lunKinds[0].name {
				continue
			}
			want, listed := expected[on{name, kind.name}]
			delete(expected, on{name, kind.name})
			if !listed {
				want.result = "pass"
			}
			wrong[name] = wrong[name] || want.result == "fail"
			all.Go(func() {
				t.Run(kind.name+"/"+name, func(t *testing.T) {
					if name != longTest {
						slots <- struct{}{}
						defer func() { <-slots }()
					}
					got, out := suiteTest(t, name, tailored.to(name, kind))
					for n := 1; got == "fail" && name == racyTest && n < 20; n++ {
						got, out = suiteTest(t, name, tailored.to(name, kind))
					}
					if got == "pass" {
						passed[name].Add(1)
					} else {
						failed[name].Add(1)
					}
					if got == "fail" && want.result == "void" {
						got = "void"
					}
					if got != want.result {
						t.Errorf("got %s, want %s (%s)\n%s", got, want.result, want.reason, out[max(0, len(out)-suiteOutput):])
					}
				})
			})
		}
	}
	all.Wait()
	for x := range tailored {
		if !slices.Contains(tests, x.test) {
			t.Errorf("%s tailors a LUN to %s, which isn't there", expectations, x.test)
		}
	}
	for x := range expected {
		t.Errorf("%s has %s on %s, which isn't there", expectations, x.test, x.kind)
	}
	for _, name := range tests {
		// -run may have left some out.
		if passed[name].Load() == 0 && int(failed[name].Load()) == len(lunKinds) && !wrong[name] {
			t.Errorf("%s passes on no kind of LUN", name)
		}
	}
}

// suiteTest runs one test of the suite: pass, skip, fail or hang.
func suiteTest(t *testing.T, name string, kind lunKind) (result, out string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "lab.yaml")
	err := os.WriteFile(config, []byte("targets: [{name: lab, luns: [{lun: 0, "+kind.disk+", store: {kind: mem, size: "+kind.size+"}}]}]"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), suiteTimeout)
	defer cancel()
	u := url(serve(t, "-f", config), 0)
	args := []string{"-d", "-S", "-V", "-f", "--test=ALL." + name, u}
	if strings.HasPrefix(name, "MultipathIO.") {
		args = append(args, u) // the other path
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
	case strings.Contains(around.ReplaceAllString(string(b), ""), "[SKIPPED]"):
		return "skip", string(b)
	}
	return "pass", string(b)
}

// around matches what comes before and after a test, where the suite looks for persistent
// reservations to be cleared, and skips that on a LUN that has none.
var around = regexp.MustCompile(`(?s)^.*?\n  Test: |(\s*Send PRIN/READ_KEYS\s+\[SKIPPED\] PERSISTENT RESERVE IN is not implemented\.)+\s+Run Summary.*$`)

// ran matches the summary's row of a run in which one test ran and passed.
var ran = regexp.MustCompile(`(?m)^\s+tests\s+1\s+1\s+1\s+0\s+0$`)

// expectations has what doesn't pass, and why.
const expectations = "testdata/iscsi-test-cu.txt"

// on is a test on a kind of LUN.
type on struct{ test, kind string }

type expectation struct{ result, reason string }

// tailoring is the keys that LUNs have for the sake of a test, on a kind of LUN or "all",
// or "disk" for all but an ATA drive.
type tailoring map[on]string

// to is the kind of LUN as a test has it.
func (t tailoring) to(test string, kind lunKind) lunKind {
	groups := []string{"all", kind.name, "disk"}
	if kind.name == "ata" {
		groups = groups[:2]
	}
	for _, g := range groups {
		if key, ok := t[on{test, g}]; ok {
			kind.disk += ", " + key
		}
	}
	return kind
}

// readExpectations reads lines of: test, kind, skip, void or fail, reason; and of: test,
// kind, with, key, value, reason.
func readExpectations(t *testing.T, path string) (map[on]expectation, tailoring) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, tailored := map[on]expectation{}, tailoring{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0][0] == '#' {
			continue
		}
		if len(f) > 5 && f[2] == "with" {
			tailored[on{f[0], f[1]}] = f[3] + " " + f[4]
			continue
		}
		if len(f) < 4 || !slices.Contains([]string{"skip", "void", "fail"}, f[2]) {
			t.Fatalf("%s: %q isn't test, kind, skip, void or fail, reason, or test, kind, with, key, value, reason", path, line)
		}
		x := on{f[0], f[1]}
		if _, twice := m[x]; twice {
			t.Fatalf("%s: %s on %s is there twice", path, x.test, x.kind)
		}
		m[x] = expectation{f[2], strings.Join(f[3:], " ")}
	}
	return m, tailored
}
