package main

import (
	"log/slog"
	"net"
	"net/netip"

	"lunlab/lab"
	"lunlab/target/iscsi"
	"lunlab/target/iscsi/isns"
)

// registerISNS registers the targets, if cfg says where, as reached by lns, which
// are one portal group. The function that it returns takes that back; it may be
// called more than once.
func registerISNS(cfg *lab.ISNS, targets []*iscsi.Target, lns []net.Listener, log *slog.Logger) (deregister func(), err error) {
	if cfg == nil {
		return func() {}, nil
	}
	o := isns.Options{Server: cfg.Server, Entity: cfg.Entity, NoInquiries: !cfg.Inquiries, Log: log}
	for _, t := range targets {
		o.Targets = append(o.Targets, isns.Target{Name: t.Name, Alias: t.Alias, Groups: t.PortalGroups})
	}
	for _, ln := range lns {
		a := ln.Addr().(*net.TCPAddr).AddrPort()
		o.Portals = append(o.Portals, isns.Portal{Addr: netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), Group: 1})
	}
	c, err := isns.Start(o)
	if err != nil {
		return nil, err
	}
	return c.Close, nil
}
