package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"lunlab/lab"
	"lunlab/target/vhostuser"
)

// machines are the virtio-scsi devices that are served, for virtual machines.
type machines struct {
	list    []machine
	serving sync.WaitGroup
}

type machine struct {
	target *lab.Target
	device *vhostuser.Device
}

// serveMachines serves the targets that have a socket for it, all or none.
func (s *served) serveMachines(cfg *lab.Config, log *slog.Logger) error {
	m := &s.machines
	for _, t := range cfg.Targets {
		if t.VhostUser.Socket == "" {
			continue
		}
		d, err := vhostuser.New(vhostuser.Options{
			Target: s.devices[t.Name], Name: t.Name, Log: log,
			Queues: t.Limits.HWQueues, QueueSize: t.Limits.CanQueue, CmdPerLUN: t.Limits.CmdPerLUN,
		})
		if err != nil {
			m.close()
			return err
		}
		ln, err := vhostuser.Listen(t.VhostUser.Socket)
		if err != nil {
			m.close()
			return fmt.Errorf("target %s: %w", t.Name, err)
		}
		m.list = append(m.list, machine{t, d})
		m.serving.Go(func() {
			if err := d.Serve(ln); !errors.Is(err, vhostuser.ErrClosed) {
				log.Error("virtual machines aren't served any more", "target", t.Name, "err", err)
			}
		})
	}
	return nil
}

// close ends them, after what they have in flight.
func (m *machines) close() {
	for _, x := range m.list {
		x.device.Close()
	}
	m.serving.Wait()
}

// announce tells the virtual machine of a change to a LUN.
func (m *machines) announce(u *lab.Unit, c vhostuser.Change) {
	for _, x := range m.list {
		if x.target.Name == u.Target.Name {
			x.device.Announce(uint16(u.Config.Number), c)
		}
	}
}

// umlQueueSize is what User-Mode Linux wants of each virtqueue: with can_queue
// below it, a target is none for it.
const umlQueueSize = 256

// greeting says how virtual machines get the devices.
func (m *machines) greeting() string {
	var b strings.Builder
	for _, x := range m.list {
		o, s := x.device.Options(), x.target.VhostUser.Socket
		fmt.Fprintf(&b, `vhost-user-scsi device %[1]s on %[2]s
As disks of a virtual machine:
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem -chardev socket,id=%[1]s,path=%[2]s -device vhost-user-scsi-pci,chardev=%[1]s,num_queues=%[3]d,virtqueue_size=%[4]d,cmd_per_lun=%[5]d,t10_pi=on
  crosvm run --vhost-user scsi,socket=%[2]s
  cloud-hypervisor --memory size=1G,shared=on --generic-vhost-user socket=%[2]s,virtio_id=8,queue_sizes=[%[6]s]
`, o.Name, s, o.Queues, o.QueueSize, o.CmdPerLUN, strings.TrimSuffix(strings.Repeat(fmt.Sprint(o.QueueSize, ","), 2+o.Queues), ","))
		if o.QueueSize >= umlQueueSize {
			fmt.Fprintf(&b, "  GLIBC_TUNABLES=glibc.pthread.rseq=0 setarch -R ./linux mem=512M virtio_uml.device=%s:8 ...  # User-Mode Linux\n", s)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
