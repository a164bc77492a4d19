package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/lun/fault/control"
	"lunlab/target/iscsi/monitor"
)

// controls are how `lunlab fault` and `lunlab powercut` get at the LUNs of a lab.
type controls struct {
	lab   *lab.Lab
	name  func(*lab.Target) string // what a target is called in their addresses
	links []lun.Link               // that the transport can break
}

// faults is what rules can be added to. Those that a unit's configuration has, which
// was read from path, have to make sense there.
func (c *controls) faults(path string, units []*lab.Unit) (list []control.LUN, err error) {
	for _, u := range units {
		l := control.LUN{Target: c.name(u.Target), Number: u.Config.Number, Unit: u.Faults, Links: c.links}
		for _, r := range u.Config.Faults {
			if err := l.Check(r); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// now is the units, and what rules can be added to.
func (c *controls) now() ([]*lab.Unit, []control.LUN) {
	units := c.lab.Units()
	list, err := c.faults("", units)
	if err != nil {
		return nil, nil // it was looked at when they were added
	}
	return units, list
}

// handler answers what changes a running server: /faults and /powercut.
func (c *controls) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/faults", control.Handler(func() []control.LUN {
		_, list := c.now()
		return list
	}))
	mux.HandleFunc("POST /powercut", c.powercut)
	return mux
}

func (c *controls) powercut(w http.ResponseWriter, r *http.Request) {
	which := r.FormValue("lun")
	survive, err := strconv.ParseFloat(r.FormValue("survive"), 64)
	if err != nil || !(survive >= 0 && survive <= 1) {
		http.Error(w, fmt.Sprintf("survive is %q; want a number from 0 to 1", r.FormValue("survive")), http.StatusBadRequest)
		return
	}
	units, list := c.now()
	if which != "" {
		i, err := control.Find(list, which)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		units, list = units[i:i+1], list[i:i+1]
	}
	var said strings.Builder
	for i, u := range units {
		err := u.CutPower(func(int64) bool { return rand.Float64() < survive })
		switch {
		case err == nil:
			fmt.Fprintf(&said, "%s/%d lost its power\n", list[i].Target, list[i].Number)
		case which != "" || !errors.Is(err, lab.ErrNoCache):
			http.Error(w, fmt.Sprintf("%s/%d: %v", list[i].Target, list[i].Number, err), http.StatusBadRequest)
			return
		}
	}
	if said.Len() == 0 {
		http.Error(w, "no LUN has a cache that it could lose: none has the key cache in lab.yaml", http.StatusBadRequest)
		return
	}
	io.WriteString(w, said.String())
}

// serveControls answers `lunlab fault` and `lunlab powercut` for what is attached.
func serveControls(c *controls, log *slog.Logger, socket string) (stop func(), err error) {
	m := &monitor.Server{Log: log}
	if socket == noSocket {
		return m.Close, nil
	}
	ln, err := listenStatus(socket, attachedPrefix+strconv.Itoa(os.Getpid()))
	switch {
	case err == nil:
		m.Serve(ln, c.handler())
	case socket == "": // it wasn't asked for
		log.Warn("lunlab fault won't find this", "err", err)
	default:
		return nil, err
	}
	return m.Close, nil
}
