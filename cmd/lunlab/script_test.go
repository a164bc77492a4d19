package main

import (
	"errors"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"lunlab/test/kernel"
	"lunlab/test/kernel/kerneltest"
	"lunlab/test/need"
)

func TestMain(m *testing.M) {
	kernel.Main() // a guest that a script boots has this program as its init
	testscript.Main(m, map[string]func(){"lunlab": main})
}

// TestScripts runs the sessions in testdata. They have, besides testscript's own:
// $PORT, a port that was free; waitport ADDRESS, which waits until someone listens;
// need PROGRAM PACKAGE, which skips without one; status N COMMAND..., which wants that exit status; kernel, which sets $KERNEL and
// $MODULES to the distribution's.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer ln.Close()
			_, port, err := net.SplitHostPort(ln.Addr().String())
			e.Setenv("PORT", port)
			e.Setenv("HOME", e.WorkDir)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitport": waitport,
			"status":   status,
			"need": func(ts *testscript.TestScript, _ bool, args []string) {
				need.Program(t, args[0], args[1])
			},
			"kernel": func(ts *testscript.TestScript, _ bool, _ []string) {
				img := kerneltest.Stock(t)
				ts.Setenv("KERNEL", img.Kernel)
				ts.Setenv("MODULES", img.Modules)
			},
		},
	})
}

func waitport(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitport address:port")
	}
	for range 200 {
		c, err := net.DialTimeout("tcp", args[0], time.Second)
		if err == nil {
			c.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("nobody listens on %s", args[0])
}

func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command args...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}
