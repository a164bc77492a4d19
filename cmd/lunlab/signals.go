package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// laterSignals gives the signals that come after the one that ended ctx, which
// is main's context. Until stop is called, none of them has its usual effect.
func laterSignals(ctx context.Context) (later <-chan os.Signal, stop func()) {
	held, ch := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(held, os.Interrupt, syscall.SIGTERM)
	registered := make(chan struct{})
	unused := context.AfterFunc(ctx, func() {
		defer close(registered)
		signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	})
	return ch, func() {
		if !unused() {
			<-registered
		}
		signal.Stop(ch)
		signal.Stop(held)
	}
}
