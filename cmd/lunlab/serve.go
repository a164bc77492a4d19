package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lunlab/lab"
	"lunlab/target/iscsi"
)

const (
	defaultListen = "127.0.0.1:3260"

	// graceTime is how long commands in flight may take to end after Ctrl-C.
	graceTime = 30 * time.Second
)

type serveOptions struct {
	file    string
	listen  []string
	name    string
	socket  string
	metrics string
	verbose bool
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve LUNs over iSCSI, to any initiator",
		Long: `Serve LUNs over iSCSI until Ctrl-C. It needs no privileges and no configuration:
without -f, LUN 0 is 1 GiB of memory, LUN 1 a thin provisioned 1 TiB of which
4 GiB can be filled. Both are gone when it ends.

Limits in lab.yaml mean here: can_queue, the commands that a session may have in
flight; cmd_per_lun, those that a LUN takes before it answers TASK SET FULL;
hw_queues, the connections that a session may have, 16 at the most.

A target that has vhost_user in lab.yaml is served to a virtual machine too, as a
virtio-scsi device: can_queue is its virtqueue size, hw_queues its request queues.
Its socket and its limits stay as they were at the start.

SIGHUP reads lab.yaml again: LUNs and targets come and go, capacities grow, limits,
access lists and settings change, each with the unit attention that tells of it.
Where something can't change in use, all stays as it was, and is said why.

The first Ctrl-C asks initiators to log out and finishes what is in flight; a
second one ends at once. The exit status is 0 if all was finished, 2 for any
error. "lunlab status" shows what a running one is doing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), &o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "`lab.yaml` that says what to serve (lunlab example prints one)")
	f.StringArrayVar(&o.listen, "listen", nil, "`address`:port to listen on; may be given several times, port 0 takes a free one (default what lab.yaml says, or "+defaultListen+")")
	f.StringVar(&o.name, "name", "", "iSCSI `name` of the target, without -f (default "+defaultName+")")
	f.StringVar(&o.socket, "socket", "", "unix socket for \"lunlab status\" and \"lunlab fault\", `path` or none (default one in the user's runtime folder)")
	f.StringVar(&o.metrics, "metrics", "", "`address`:port on which to serve /metrics for Prometheus")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log rejected PDUs too")
	cmd.MarkFlagsMutuallyExclusive("file", "name")
	return cmd
}

func (o *serveOptions) config() (*lab.Config, error) {
	if o.file != "" {
		return lab.Load(o.file)
	}
	return defaultLab(o.name), nil
}

// portals are where to listen: what the flags say, or else the configuration.
func (o *serveOptions) portals(cfg *lab.Config) []lab.Portal {
	listen := o.listen
	if len(listen) == 0 && len(cfg.ISCSI.Listen) > 0 {
		return cfg.ISCSI.Listen
	}
	if len(listen) == 0 {
		listen = []string{defaultListen}
	}
	var portals []lab.Portal
	for _, a := range listen {
		portals = append(portals, lab.Portal{Address: a, Group: 1})
	}
	return portals
}

// serve serves until ctx ends, and then a while longer.
func serve(ctx context.Context, o *serveOptions, stdout, stderr io.Writer) (err error) {
	later, stopSignals := laterSignals(ctx)
	defer stopSignals()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}
	portals := o.portals(cfg)
	served, err := openServed(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, served.lab.Close()) }()
	if _, err := served.controls.faults(cfg.Path, served.lab.Units()); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	srv, err := iscsi.NewServer(iscsi.Options{Targets: served.targets, Log: log, DiscoveryCHAP: (*iscsi.CHAP)(cfg.ISCSI.DiscoveryCHAP)})
	if err != nil {
		return err
	}
	defer srv.Close()
	lns, err := listenAll(portals)
	if err != nil {
		return err
	}
	stop, err := serveStatus(srv, served.controls.handler(), log, o.socket, o.metrics, lns[0].Addr())
	if err != nil {
		for _, ln := range lns {
			ln.Close()
		}
		return err
	}
	defer stop()
	deregister, err := registerISNS(cfg.ISCSI.ISNS, served.targets, lns, log)
	if err != nil {
		for _, ln := range lns {
			ln.Close()
		}
		return err
	}
	defer deregister()
	if err := served.serveMachines(cfg, log); err != nil {
		for _, ln := range lns {
			ln.Close()
		}
		return err
	}
	defer served.machines.close()
	fmt.Fprint(stdout, served.greeting(lns)+served.machines.greeting())

	failed := make(chan error, len(lns))
	var serving sync.WaitGroup
	for i, ln := range lns {
		serving.Go(func() { failed <- srv.ServeGroup(ln, portals[i].Group) })
	}
	defer func() {
		srv.Close()
		serving.Wait()
	}()
	for ctx.Err() == nil {
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
		case <-hangups:
			hangup(o.file, func() (string, error) { return served.reload(srv, o.file) }, stdout, stderr)
		}
	}
	go deregister() // so that nobody is sent here any more
	fmt.Fprintln(stdout, "ending: initiators are asked to log out (Ctrl-C again to end at once)")
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- srv.Shutdown(grace) }()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("commands were still in flight after %v, and were aborted", graceTime)
		}
		return nil
	case <-later:
		fmt.Fprintln(stderr, "lunlab: ended at once, perhaps with commands in flight")
		os.Exit(2)
		return nil
	}
}

// listenAll listens on all addresses or on none.
func listenAll(portals []lab.Portal) ([]net.Listener, error) {
	var lns []net.Listener
	for _, p := range portals {
		ln, err := net.Listen("tcp", p.Address)
		if err != nil {
			for _, ln := range lns {
				ln.Close()
			}
			return nil, listenError(p.Address, err)
		}
		lns = append(lns, ln)
	}
	return lns, nil
}

func listenError(address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen on %s: the port is taken, perhaps by another target; end it, or choose a free port: --listen %s", address, withPort(address, "0"))
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listen on %s: not permitted; ports below 1024 need root, so choose a higher one: --listen %s", address, withPort(address, "3260"))
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("listen on %s: this machine has no such address; `ip addr` lists those it has", address)
	}
	return fmt.Errorf("listen on %s: %w", address, err)
}

func withPort(address, port string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return net.JoinHostPort(host, port)
}
