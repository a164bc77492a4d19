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
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
)

const (
	defaultListen = "127.0.0.1:3260"
	defaultName   = "iqn.2026-01.example.lunlab:lab"

	// thinLimit is how much of the thin LUN may be filled: it lies in memory.
	thinLimit = 4 << 30

	// graceTime is how long commands in flight may take to end after Ctrl-C.
	graceTime = 30 * time.Second
)

type serveOptions struct {
	listen  []string
	name    string
	verbose bool
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve LUNs over iSCSI, to any initiator",
		Long: `Serve LUNs over iSCSI until Ctrl-C. It needs no privileges and no configuration:
LUN 0 is 1 GiB of memory, LUN 1 a thin provisioned 1 TiB of which 4 GiB can be
filled. Both are gone when it ends.

The first Ctrl-C asks initiators to log out and finishes what is in flight; a
second one ends at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(&o, cmd.OutOrStdout(), cmd.ErrOrStderr()) },
	}
	cmd.Flags().StringArrayVar(&o.listen, "listen", []string{defaultListen}, "`address`:port to listen on; may be given several times, port 0 takes a free one")
	cmd.Flags().StringVar(&o.name, "name", defaultName, "iSCSI `name` of the target")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "log rejected PDUs too")
	return cmd
}

func serve(o *serveOptions, stdout, stderr io.Writer) error {
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	t, err := defaultTarget(o.name)
	if err != nil {
		return err
	}
	srv, err := iscsi.NewServer(iscsi.Options{
		Targets: []*iscsi.Target{t},
		Log:     slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		return err
	}
	var lns []net.Listener
	for _, a := range o.listen {
		ln, err := net.Listen("tcp", a)
		if err != nil {
			for _, ln := range lns {
				ln.Close()
			}
			srv.Close()
			return listenError(a, err)
		}
		lns = append(lns, ln)
	}
	// From here on a signal ends it in order.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	fmt.Fprint(stdout, greeting(t, lns))

	served := make(chan error, len(lns))
	for _, ln := range lns {
		go func() { served <- srv.Serve(ln) }()
	}
	select {
	case err := <-served:
		srv.Close()
		return err
	case <-signals:
	}
	fmt.Fprintln(stdout, "ending: initiators are asked to log out (Ctrl-C again to end at once)")
	ctx, cancel := context.WithTimeout(context.Background(), graceTime)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- srv.Shutdown(ctx) }()
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("commands were still in flight after %v: %w", graceTime, err)
		}
		return closeUnits(t)
	case <-signals:
		return errors.New("ended at once, with commands perhaps in flight")
	}
}

// defaultTarget is what is served without a configuration.
func defaultTarget(name string) (*iscsi.Target, error) {
	d := target.New()
	for n, u := range []struct {
		size, limit int64
		o           lun.DiskOptions
	}{
		{1 << 30, 1 << 30, lun.DiskOptions{Product: "memory", Thin: true}},
		{1 << 40, thinLimit, lun.DiskOptions{Product: "thin", Thin: true}},
	} {
		s, err := mem.NewLimited(u.size, u.limit)
		if err != nil {
			return nil, err
		}
		n := uint16(n)
		u.o.AbortTasks = func(x *lun.Nexus) { d.AbortTasksOf(n, x) }
		disk, err := lun.NewDisk(s, u.o)
		if err != nil {
			return nil, err
		}
		if _, err := d.Add(n, disk, target.Limits{}); err != nil {
			return nil, err
		}
	}
	return &iscsi.Target{Name: name, Alias: "lunlab", Device: d}, nil
}

// closeUnits flushes and closes what the target's units lie on.
func closeUnits(t *iscsi.Target) error {
	var errs []error
	for _, u := range t.Device.Units() {
		if c, ok := u.Unit().(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
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

// greeting says what is served and how it is used.
func greeting(t *iscsi.Target, lns []net.Listener) string {
	var b strings.Builder
	for _, ln := range lns {
		fmt.Fprintf(&b, "listening on %s\n", ln.Addr())
	}
	fmt.Fprintf(&b, "target %s\n", t.Name)
	for _, u := range t.Device.Units() {
		fmt.Fprintf(&b, "  LUN %d\n", u.Number())
	}
	portal := reachable(lns[0].Addr())
	host, port, _ := net.SplitHostPort(portal)
	url := fmt.Sprintf("iscsi://%s/%s", portal, t.Name)
	escape := strings.NewReplacer(":", `\:`)
	fmt.Fprintf(&b, `
Use it:
  iscsi-ls -s iscsi://%[1]s
  iscsi-inq %[2]s/0
  qemu-img info %[2]s/0
  qemu-img convert -n -O raw disk.img %[2]s/0
  qemu-io -f raw -c 'write -P 0x5a 0 1M' -c 'read -P 0x5a 0 1M' %[2]s/0
  fio --name=read --ioengine=libiscsi --filename='%[3]s/0' --rw=randread --bs=4k --iodepth=32 --runtime=10 --time_based
  qemu-system-x86_64 -drive file=%[2]s/0,format=raw,if=virtio
As disks of this machine (root, open-iscsi), and off again:
  iscsiadm -m discovery -t sendtargets -p %[1]s
  iscsiadm -m node -T %[4]s -p %[1]s --login
  iscsiadm -m node -T %[4]s -p %[1]s --logout
From Windows:
  iscsicli QAddTargetPortal %[5]s %[6]s
  iscsicli QLoginTarget %[4]s

`, portal, url, escape.Replace(url), t.Name, host, port)
	return b.String()
}

// reachable is an address that a client on this machine can use for one that is
// listened on.
func reachable(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok || !t.IP.IsUnspecified() {
		return a.String()
	}
	host := "127.0.0.1"
	if t.IP.To4() == nil {
		host = "::1"
	}
	return net.JoinHostPort(host, fmt.Sprint(t.Port))
}
