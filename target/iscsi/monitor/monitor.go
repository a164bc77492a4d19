// Package monitor lets others see what an iSCSI server does, over HTTP: as JSON,
// and as metrics for Prometheus.
package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"lunlab/target/iscsi"
)

// Status answers GET /status with [iscsi.Status] as JSON.
func Status(srv *iscsi.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(srv.Status()) // fails if the client has gone
	})
	return mux
}

// Server answers on listeners until Close. One goroutine calls its methods.
type Server struct {
	Log *slog.Logger // told of a listener that fails

	servers []*http.Server
	serving sync.WaitGroup
}

// Serve answers on ln, which it closes, with h.
func (s *Server) Serve(ln net.Listener, h http.Handler) {
	hs := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	s.servers = append(s.servers, hs)
	s.serving.Go(func() {
		if err := hs.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.Log.Error("nothing is answered any more", "address", ln.Addr(), "err", err)
		}
	})
}

// Close ends what is served, with a second for requests under way, and waits for
// it.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, hs := range s.servers {
		if hs.Shutdown(ctx) != nil {
			hs.Close()
		}
	}
	s.serving.Wait()
}

// ErrInUse says that a path is not free for a socket.
var ErrInUse = errors.New("is in use")

// ListenUnix listens on a socket. One that a killed server left is replaced; one
// that somebody answers on is not, nor is a file of any other kind: ErrInUse.
func ListenUnix(path string) (net.Listener, error) {
	ln, err := net.Listen("unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if fi.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s %w: it is no socket", path, ErrInUse)
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		c.Close()
		return nil, fmt.Errorf("%s %w by a running server", path, ErrInUse)
	case !errors.Is(err, syscall.ECONNREFUSED): // refused: nobody listens on it
		return nil, fmt.Errorf("%s %w, it seems: %w", path, ErrInUse, err)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}
