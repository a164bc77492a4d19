package scenario

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
)

const (
	iscsiTarget    = "iqn.2026-01.example.lunlab:ktest"
	iscsiInitiator = "iqn.2026-01.example.lunlab:kernel"
	iscsiTransport = "/sys/class/iscsi_transport/tcp" // there with iscsi_tcp

	// iscsiManagement is how many of cmds_max libiscsi keeps for task management
	// and the like, from 5.13 on; the rest is the host's can_queue.
	iscsiManagement = 15
)

// cmdsMax is the node.session.cmds_max that gives an iscsi_tcp host its
// can_queue. libiscsi cuts it to a power of two.
func (c Case) cmdsMax() int { return c.CanQueue + iscsiManagement }

// validISCSI tells whether an iscsi_tcp host can have the case's limits.
func (c Case) validISCSI() error {
	if n := c.cmdsMax(); n&(n-1) != 0 || n < 16 || n > 4096 {
		return fmt.Errorf("iscsi_tcp has for can_queue a power of two, 16 to 4096, less %d: 49 is cmds_max 64", iscsiManagement)
	}
	if c.HWQueues != 1 || c.HostTagset {
		return errors.New("iscsi_tcp has one hardware queue")
	}
	return nil
}

// attachISCSI serves a memory LUN of ours on the loopback interface, and has the
// kernel's own initiator log in with the case's limits.
func (rn *runner) attachISCSI(ctx context.Context, c Case) (_ *disk, err error) {
	if _, err := os.Stat(iscsiTransport); err != nil {
		return nil, errors.New("the kernel has no iscsi_tcp, neither built in nor as a module that was loaded")
	}
	store, err := mem.New(diskSize)
	if err != nil {
		return nil, err
	}
	unit, err := lun.NewDisk(store, lun.DiskOptions{})
	if err != nil {
		return nil, err
	}
	m := target.NewMeter(unit)
	d := &disk{meter: m}
	dev := target.New()
	ledger := rn.ledgers.add(m, 0)
	if _, err := dev.Add(0, ledger, target.Limits{}); err != nil {
		return nil, err
	}
	// The kernel's limits are to show, not the window of ours.
	srv, err := iscsi.NewServer(iscsi.Options{Targets: []*iscsi.Target{{Name: iscsiTarget, Device: dev, CanQueue: 2 * c.cmdsMax()}}})
	if err != nil {
		return nil, err
	}
	session := ""
	d.remove = func() error {
		var err error
		// What hangs in the kernel can't be taken away.
		if session != "" && ctx.Err() == nil {
			err = endISCSISession(session)
		}
		rn.ledgers.remove(ledger)
		return errors.Join(err, srv.Close(), unit.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove())
		}
	}()
	if err := loopbackUp(); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go srv.Serve(ln)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return nil, err
	}
	// It ends when it has logged in, and leaves the session to the kernel.
	login := exec.CommandContext(ctx, "iscsistart", "-i", iscsiInitiator, "-t", iscsiTarget, "-g", "1", "-a", "127.0.0.1", "-p", port,
		"-P", fmt.Sprintf("node.session.cmds_max=%d", c.cmdsMax()), "-P", fmt.Sprintf("node.session.queue_depth=%d", c.CmdPerLUN),
		"-P", "node.conn[0].timeo.noop_out_interval=0", "-P", "node.conn[0].timeo.noop_out_timeout=0")
	login.WaitDelay = time.Second // for the child that it leaves
	if out, err := login.CombinedOutput(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("iscsistart: %w: %s", err, strings.TrimSpace(string(out)))
	}
	wait, cancel := context.WithTimeoutCause(ctx, 60*time.Second, errors.New("iscsistart has logged in, but no disk came"))
	defer cancel()
	for {
		if session == "" {
			session = iscsiSession()
		}
		found, _ := filepath.Glob("/sys/class/iscsi_session/" + session + "/device/target*/*:*:*:*/block/*")
		if session != "" && len(found) > 0 {
			d.name = filepath.Base(found[0])
			d.device = filepath.Base(filepath.Dir(filepath.Dir(found[0])))
			if _, err := os.Stat("/dev/" + d.name); err == nil {
				return d, nil
			}
		}
		if err := sleep(wait, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// iscsiSession is the name of the kernel's session with our target, "" if it has
// none.
func iscsiSession() string {
	names, _ := filepath.Glob("/sys/class/iscsi_session/session*/targetname")
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == iscsiTarget {
			return filepath.Base(filepath.Dir(n))
		}
	}
	return ""
}

// loopbackUp brings the loopback interface up, which nobody has done in a guest.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fmt.Errorf("flags of lo: %w", err)
	}
	if req.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

// Requests to the kernel's iSCSI transport, enum iscsi_uevent_e in
// <scsi/iscsi_if.h>.
const (
	iscsiDestroySession = 12
	iscsiDestroyConn    = 14
	iscsiStopConn       = 18

	iscsiStopTerm = 1 // STOP_CONN_TERM

	// iscsiEventRoom is more than struct iscsi_uevent has in any kernel.
	iscsiEventRoom = 512
)

// endISCSISession takes the disk of a session away, then its connection, then
// the session itself, as iscsid does after a logout.
func endISCSISession(session string) error {
	sid, err := strconv.ParseUint(strings.TrimPrefix(session, "session"), 10, 32)
	if err != nil {
		return err
	}
	disks, _ := filepath.Glob("/sys/class/iscsi_session/" + session + "/device/target*/*:*:*:*/delete")
	for _, d := range disks {
		if err := os.WriteFile(d, []byte("1"), 0); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(iscsiTransport + "/handle")
	if err != nil {
		return err
	}
	transport, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ISCSI)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	// An answer that never comes isn't waited for.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		return err
	}
	for _, request := range []struct {
		name string
		kind uint32
	}{{"stop the connection", iscsiStopConn}, {"destroy the connection", iscsiDestroyConn}, {"destroy the session", iscsiDestroySession}} {
		b := make([]byte, unix.NLMSG_HDRLEN+iscsiEventRoom)
		ne := binary.NativeEndian
		ne.PutUint32(b, uint32(len(b)))
		ne.PutUint16(b[4:], uint16(request.kind))
		event := b[unix.NLMSG_HDRLEN:]
		ne.PutUint32(event, request.kind)
		ne.PutUint64(event[8:], transport)
		ne.PutUint32(event[16:], uint32(sid)) // the connection's id, 0, follows
		if request.kind == iscsiStopConn {
			ne.PutUint32(event[32:], iscsiStopTerm)
		}
		if err := iscsiRequest(fd, request.kind, b); err != nil {
			return fmt.Errorf("%s of %s: %w", request.name, session, err)
		}
	}
	return nil
}

// iscsiRequest sends a request and takes the answer to it.
func iscsiRequest(fd int, kind uint32, b []byte) error {
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return err
		}
		if n < unix.NLMSG_HDRLEN+16 {
			return fmt.Errorf("the kernel answers with %d bytes", n)
		}
		event := b[unix.NLMSG_HDRLEN:n]
		if binary.NativeEndian.Uint32(event) != kind {
			continue // an event that has to do with it
		}
		if e := int32(binary.NativeEndian.Uint32(event[4:])); e < 0 {
			return unix.Errno(-e)
		}
		return nil
	}
}
