package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/lun/fault/control"
	"lunlab/target/iscsi/monitor"
)

// serveFaults answers `lunlab fault` for what is attached.
func serveFaults(faults http.Handler, log *slog.Logger, socket string) (stop func(), err error) {
	m := &monitor.Server{Log: log}
	if socket == noSocket {
		return m.Close, nil
	}
	ln, err := listenStatus(socket, attachedPrefix+strconv.Itoa(os.Getpid()))
	switch {
	case err == nil:
		m.Serve(ln, faults)
	case socket == "": // it wasn't asked for
		log.Warn("lunlab fault won't find this", "err", err)
	default:
		return nil, err
	}
	return m.Close, nil
}

// faultsOf is what rules can be added to: the LUNs of the lab that was read from path, by the names that their
// targets have there.
func faultsOf(path string, units []*lab.Unit, name func(*lab.Target) string, links ...lun.Link) (list []control.LUN, err error) {
	for _, u := range units {
		c := control.LUN{Target: name(u.Target), Number: u.Config.Number, Unit: u.Faults, Links: links}
		for _, r := range u.Config.Faults {
			if err := c.Check(r); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		list = append(list, c)
	}
	return list, nil
}
