// Package need says what a test requires of the machine. Where it is missing,
// the test is skipped with the reason and the way to get it; under CI=true it
// fails, so that nothing is skipped there unseen.
package need

import (
	"os"
	"os/exec"
	"testing"
)

// Missing skips the test, or fails it under CI.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("needed in CI: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Program requires an executable on the PATH and returns where it is.
// pkg is the Debian package that has it.
func Program(t testing.TB, name, pkg string) string {
	t.Helper()
	p, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "%s is not installed: apt-get install %s", name, pkg)
	}
	return p
}

// Root requires the test to run as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "needs root")
	}
}
