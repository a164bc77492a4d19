package main

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
)

func TestLaterSignals(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	later, stop := laterSignals(ctx)
	defer stop()
	send := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	send() // the one that main's context is told of
	select {
	case s := <-later:
		t.Fatalf("%v before the context ended", s)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	for end := time.After(10 * time.Second); ; {
		send() // the first may come before it is listened to
		select {
		case <-later:
			return
		case <-time.After(10 * time.Millisecond):
		case <-end:
			t.Fatal("no signal came through")
		}
	}
}

// A signal that comes before the server listens ends it as one that comes later.
func TestServeEndedEarly(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := serveCommand()
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0", "--socket", "none"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it is still served")
	}
}
