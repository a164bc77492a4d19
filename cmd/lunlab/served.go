package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/target"
	"lunlab/target/iscsi"
)

const (
	namePrefix  = "iqn.2026-01.example.lunlab:"
	defaultName = namePrefix + "lab"

	// maxConnections is the most connections of a session, whatever hw_queues says.
	maxConnections = 16
)

// defaultLab is what is served without a configuration.
func defaultLab(name string) *lab.Config {
	if name == "" {
		name = defaultName
	}
	return &lab.Config{Targets: []*lab.Target{{
		Name:  "lab",
		ISCSI: lab.ISCSITarget{Name: name, Alias: "lunlab"},
		LUNs: []*lab.LUN{
			{Number: 0, Thin: true, Store: lab.Store{Kind: lab.Memory, Size: 1 << 30}},
			{Number: 1, Thin: true, Product: "thin", Store: lab.Store{Kind: lab.Memory, Size: 1 << 40, Limit: 4 << 30}},
		},
	}}}
}

// served is a lab as iSCSI targets.
//
// Only serve's own goroutine changes any of it. mu is held to change devices, or to
// read them on another.
type served struct {
	mu      sync.Mutex
	lab     *lab.Lab
	devices map[string]*target.Target // by the target's name in the configuration
	targets []*iscsi.Target

	controls controls
	machines machines
}

// openServed opens what a configuration names.
func openServed(cfg *lab.Config) (*served, error) {
	s := &served{devices: map[string]*target.Target{}}
	for _, t := range cfg.Targets {
		s.devices[t.Name] = target.New()
	}
	l, err := cfg.Build(s.abort)
	if err != nil {
		return nil, err
	}
	s.lab = l
	s.controls = controls{l, iscsiName, []lun.Link{lun.ConnectionLink, lun.SessionLink}}
	for _, u := range l.LUNs {
		if err := s.add(u); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	s.targets = s.targetsOf(cfg)
	return s, nil
}

// abort aborts the tasks of a nexus that was taken off a LUN. A target that isn't
// there any more has none.
func (s *served) abort(t *lab.Target, number int, n *lun.Nexus) {
	s.mu.Lock()
	d := s.devices[t.Name]
	s.mu.Unlock()
	if d != nil {
		d.AbortTasksOf(uint16(number), n)
	}
}

func limitsOf(t *lab.Target) target.Limits { return target.Limits{CmdPerLUN: t.Limits.CmdPerLUN} }

func (s *served) add(u *lab.Unit) error {
	_, err := s.devices[u.Target.Name].Add(uint16(u.Config.Number), u.Faults, limitsOf(u.Target))
	return err
}

func (s *served) targetsOf(cfg *lab.Config) (list []*iscsi.Target) {
	for _, t := range cfg.Targets {
		list = append(list, &iscsi.Target{
			Name: iscsiName(t), Alias: t.ISCSI.Alias, Device: s.devices[t.Name],
			CanQueue: t.Limits.CanQueue, HWQueues: min(t.Limits.HWQueues, maxConnections),
			Access: accessOf(t), PortalGroups: t.ISCSI.PortalGroups, Redirect: (*iscsi.Redirect)(t.ISCSI.Redirect),
		})
	}
	return list
}

// iscsiName is what a target is called over iSCSI.
func iscsiName(t *lab.Target) string {
	if t.ISCSI.Name != "" {
		return t.ISCSI.Name
	}
	return namePrefix + strings.ReplaceAll(strings.ToLower(t.Name), "_", "-")
}

func accessOf(t *lab.Target) (list []iscsi.Access) {
	for _, a := range t.ISCSI.Access {
		x := iscsi.Access{Initiator: a.Initiator, CHAP: (*iscsi.CHAP)(a.CHAP)}
		if a.LUNs != nil {
			x.LUNs = []uint16{}
		}
		for _, n := range a.LUNs {
			x.LUNs = append(x.LUNs, uint16(n))
		}
		list = append(list, x)
	}
	return list
}

// greeting says what is served and how it is used.
func (s *served) greeting(lns []net.Listener) string {
	var b strings.Builder
	for _, ln := range lns {
		fmt.Fprintf(&b, "listening on %s\n", ln.Addr())
	}
	portal := reachable(lns[0].Addr())
	for i, t := range s.targets {
		fmt.Fprintf(&b, "\ntarget %s\n", t.Name)
		units := s.lab.Of(s.lab.Config.Targets[i])
		for j, u := range units {
			if j == maxGreeted {
				fmt.Fprintf(&b, "  and %d more\n", len(units)-j)
				break
			}
			fmt.Fprintf(&b, "  LUN %d: %s\n", u.Config.Number, describe(u.Config))
		}
		if len(units) > 0 {
			commandsFor(&b, portal, t.Name, units[0].Config.Number)
			credentialsFor(&b, portal, t, s.lab.Config.ISCSI.DiscoveryCHAP)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

// maxGreeted is how many LUNs of a target are listed.
const maxGreeted = 16

func describe(u *lab.LUN) string {
	s := lab.FormatSize(uint64(u.Store.Size))
	switch u.Store.Kind {
	case lab.Memory:
		s += " in memory"
		if u.Store.Limit > 0 && u.Store.Limit < u.Store.Size {
			s += ", of which " + lab.FormatSize(uint64(u.Store.Limit)) + " can be filled"
		}
	case lab.File:
		if s = u.Store.Path; u.Store.Size > 0 {
			s = lab.FormatSize(uint64(u.Store.Size)) + " in " + u.Store.Path
		}
	case lab.Null:
		s += " of nothing"
	case lab.NBD:
		s = u.Store.Address
	}
	if u.Store.Cache > 0 {
		s += ", behind " + lab.FormatSize(uint64(u.Store.Cache)) + " of cache"
	}
	if u.Thin {
		s += ", thin"
	}
	if u.ATA != nil {
		s += ", an ATA drive"
	}
	if u.ReadOnly {
		s += ", read-only"
	}
	return s
}

// commandsFor prints commands that use a LUN, for each kind of initiator.
func commandsFor(b *strings.Builder, portal, name string, lun int) {
	host, port, _ := net.SplitHostPort(portal)
	url := fmt.Sprintf("iscsi://%s/%s/%d", portal, name, lun)
	fmt.Fprintf(b, `Use it:
  iscsi-ls -s iscsi://%[1]s
  iscsi-inq %[2]s
  qemu-img info %[2]s
  qemu-img convert -n -O raw disk.img %[2]s
  qemu-io -f raw -c 'write -P 0x5a 0 1M' -c 'read -P 0x5a 0 1M' %[2]s
  fio --name=read --ioengine=libiscsi --filename='%[3]s' --rw=randread --bs=4k --iodepth=32 --runtime=10 --time_based
  qemu-system-x86_64 -drive file=%[2]s,format=raw,if=virtio
As disks of this machine (root, open-iscsi), and off again:
  iscsiadm -m discovery -t sendtargets -p %[1]s
  iscsiadm -m node -T %[4]s -p %[1]s --login
  iscsiadm -m node -T %[4]s -p %[1]s --logout
From Windows:
  iscsicli QAddTargetPortal %[5]s %[6]s
  iscsicli QLoginTarget %[4]s
`, portal, url, strings.ReplaceAll(url, ":", `\:`), name, host, port)
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
