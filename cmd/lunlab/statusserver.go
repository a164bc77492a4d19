package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"lunlab/target/iscsi"
	"lunlab/target/iscsi/monitor"
)

// noSocket as a path means that there is to be none.
const noSocket = "none"

// runtimeDir is the folder in which this user's running servers have their
// sockets, if there are any.
func runtimeDir() (string, error) {
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "lunlab"), nil
	}
	d := filepath.Join(os.TempDir(), fmt.Sprintf("lunlab-%d", os.Getuid()))
	// Anyone can make it there, and then sees or answers what isn't meant for him.
	fi, err := os.Lstat(d)
	if errors.Is(err, os.ErrNotExist) {
		return d, nil
	} else if err != nil {
		return "", err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() || !fi.IsDir() || fi.Mode().Perm() != 0o700 {
		return "", fmt.Errorf("%s isn't a folder of this user alone (mode 0700); remove it, or set XDG_RUNTIME_DIR", d)
	}
	return d, nil
}

// makeRuntimeDir makes it.
func makeRuntimeDir() (string, error) {
	d, err := runtimeDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(d, 0o700); err != nil {
		return "", err
	}
	return runtimeDir() // somebody else may have been faster
}

// attachedPrefix begins the names of the sockets of those who attach.
const attachedPrefix = "attach-"

// serveStatus answers `lunlab status` and `lunlab fault` on a unix socket, and
// Prometheus on an address if there is one. stop ends both.
func serveStatus(srv *iscsi.Server, controls http.Handler, log *slog.Logger, socket, metrics string, portal net.Addr) (stop func(), err error) {
	m := &monitor.Server{Log: log}
	if metrics != "" {
		ln, err := net.Listen("tcp", metrics)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", listenError(metrics, err))
		}
		m.Serve(ln, monitor.Metrics(srv))
	}
	if socket == noSocket {
		return m.Close, nil
	}
	ln, err := listenStatus(socket, portal.String())
	switch {
	case err == nil:
		mux := http.NewServeMux()
		mux.Handle("/", controls)
		mux.Handle("/status", monitor.Status(srv))
		m.Serve(ln, mux)
	case socket == "": // it wasn't asked for
		log.Warn("lunlab status won't find this server", "err", err)
	default:
		m.Close()
		return nil, err
	}
	return m.Close, nil
}

// listenStatus listens on socket, or else on one in the runtime folder, with a name
// that no other server has.
func listenStatus(socket, name string) (net.Listener, error) {
	if socket == "" {
		dir, err := makeRuntimeDir()
		if err != nil {
			return nil, err
		}
		socket = filepath.Join(dir, name+".sock")
	}
	ln, err := monitor.ListenUnix(socket)
	if errors.Is(err, monitor.ErrInUse) {
		return nil, fmt.Errorf("status socket: %w; choose another one: --socket PATH", err)
	} else if err != nil {
		return nil, fmt.Errorf("status socket: %w", err)
	}
	return ln, nil
}
