// Package shared helps transports that share memory with somebody who may take it
// away.
package shared

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// GuardFault calls f and returns an error if it touched memory of a mapping that
// isn't there any more. Other panics go on.
//
// It is for code that holds no lock and leaves nothing half done.
func GuardFault(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		var fault interface{ Addr() uintptr }
		if e, ok := p.(runtime.Error); ok && errors.As(e, &fault) {
			err = fmt.Errorf("shared memory is gone: %w", e)
			return
		}
		panic(p)
	}()
	f()
	return nil
}
