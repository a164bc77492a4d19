package tcmu

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// Reconfig is a change that somebody asked for by writing to an attribute of
// the device in configfs. One field is set.
type Reconfig struct {
	Size       *uint64 // dev_size, in bytes
	WriteCache *bool   // emulate_write_cache
	Config     *string // dev_config
}

// event is a message that the kernel sends to the family's group.
type event struct {
	cmd      uint8
	device   string // HBA number and name, "0/t0"
	id       uint32 // to be sent back with the answer
	reconfig Reconfig
}

// maxEventAttributeSize bounds an attribute; a configfs value has a page.
const maxEventAttributeSize = 4096

func parseEvent(m genetlink.Message) (event, error) {
	e := event{cmd: m.Header.Command}
	ad, err := netlink.NewAttributeDecoder(m.Data)
	if err != nil {
		return event{}, fmt.Errorf("event %d: %w", e.cmd, err)
	}
	var haveID bool
	for ad.Next() {
		if len(ad.Bytes()) > maxEventAttributeSize {
			return event{}, fmt.Errorf("event %d: attribute %d has %d bytes", e.cmd, ad.Type(), len(ad.Bytes()))
		}
		switch ad.Type() {
		case attrDevice:
			e.device = deviceKey(ad.String())
		case attrDeviceID:
			e.id, haveID = ad.Uint32(), true
		case attrDevSize:
			v := ad.Uint64()
			e.reconfig.Size = &v
		case attrWriteCache:
			v := ad.Uint8() != 0
			e.reconfig.WriteCache = &v
		case attrDevCfg:
			v := strings.TrimRight(ad.String(), "\n")
			e.reconfig.Config = &v
		}
	}
	if err := ad.Err(); err != nil {
		return event{}, fmt.Errorf("event %d: %w", e.cmd, err)
	}
	if !haveID {
		return event{}, fmt.Errorf("event %d: no device id", e.cmd)
	}
	return e, nil
}

// deviceKey takes "0/t0" out of a UIO name, "tcm-user/0/t0/lunlab/t0". It is
// empty for names of another form.
func deviceKey(uioName string) string {
	f := strings.SplitN(uioName, "/", 4)
	if len(f) < 3 || f[0] != "tcm-user" {
		return ""
	}
	return f[1] + "/" + f[2]
}

// reply is the answer to an event.
func (e event) reply(status int32) (genetlink.Message, error) {
	done := map[uint8]uint8{
		genlAddedDevice:    genlAddedDeviceDone,
		genlRemovedDevice:  genlRemovedDeviceDone,
		genlReconfigDevice: genlReconfigDeviceDone,
	}[e.cmd]
	if done == 0 {
		return genetlink.Message{}, fmt.Errorf("event %d has no answer", e.cmd)
	}
	ae := netlink.NewAttributeEncoder()
	ae.Int32(attrCmdStatus, status)
	ae.Uint32(attrDeviceID, e.id)
	b, err := ae.Encode()
	return genetlink.Message{Header: genetlink.Header{Command: done, Version: genlVersion}, Data: b}, err
}

// errnoStatus is err as the kernel wants it: 0, or a negative error number.
func errnoStatus(err error) int32 {
	var no syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &no):
		return -int32(no)
	case errors.Is(err, errors.ErrUnsupported):
		return -int32(syscall.EOPNOTSUPP)
	}
	return -int32(syscall.EINVAL)
}

// events answers the kernel's set-up, removal and reconfiguration requests. The
// kernel waits for the answers, without a limit.
type events struct {
	in, out *genetlink.Conn
	family  uint16
	wg      sync.WaitGroup

	mu      sync.Mutex
	devices map[string]func(Reconfig) error // nil: refuses to be changed
	closing bool
	failure error // why nothing is heard any more
}

func listenEvents() (_ *events, err error) {
	l := &events{devices: make(map[string]func(Reconfig) error)}
	if l.in, err = genetlink.Dial(nil); err != nil {
		return nil, fmt.Errorf("generic netlink: %w", err)
	}
	if l.out, err = genetlink.Dial(nil); err != nil {
		l.in.Close()
		return nil, fmt.Errorf("generic netlink: %w", err)
	}
	defer func() {
		if err != nil {
			l.in.Close()
			l.out.Close()
		}
	}()
	fam, err := l.out.GetFamily(genlName)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the kernel has no generic netlink family %s: is target_core_user loaded? (%w)", genlName, err)
	} else if err != nil {
		return nil, fmt.Errorf("generic netlink family %s: %w", genlName, err)
	}
	l.family = fam.ID
	var group uint32
	for _, g := range fam.Groups {
		if g.Name == genlGroup {
			group = g.ID
		}
	}
	if group == 0 {
		return nil, fmt.Errorf("generic netlink family %s has no group %q", genlName, genlGroup)
	}
	l.in.SetReadBuffer(1 << 20) // an event that is lost would be waited for
	if err := l.in.JoinGroup(group); err != nil {
		return nil, fmt.Errorf("join group %s of %s: %w", genlGroup, genlName, err)
	}
	if err := l.setReplies(true); err != nil {
		return nil, err
	}
	l.wg.Add(1)
	go l.loop()
	return l, nil
}

// setReplies tells the kernel whether events are answered, for all devices.
func (l *events) setReplies(on bool) error {
	v := uint8(0)
	if on {
		v = 1
	}
	ae := netlink.NewAttributeEncoder()
	ae.Uint8(attrSuppKernCmdReply, v)
	b, err := ae.Encode()
	if err != nil {
		return err
	}
	m := genetlink.Message{Header: genetlink.Header{Command: genlSetFeatures, Version: genlVersion}, Data: b}
	if _, err := l.out.Execute(m, l.family, netlink.Request|netlink.Acknowledge); err != nil {
		return fmt.Errorf("set features of %s: %w", genlName, err)
	}
	return nil
}

// add answers events of the device from now on.
func (l *events) add(device string, change func(Reconfig) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices[device] = change
}

func (l *events) remove(device string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.devices, device)
}

func (l *events) loop() {
	defer l.wg.Done()
	for {
		msgs, _, err := l.in.Receive()
		if isErrno(err, syscall.ENOBUFS, syscall.EINTR) {
			continue
		} else if err != nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			if !l.closing {
				l.failure = fmt.Errorf("the kernel's events aren't heard any more: %w", err)
			}
			return
		}
		for _, m := range msgs {
			e, err := parseEvent(m)
			if err != nil {
				continue
			}
			l.mu.Lock()
			change, ours := l.devices[e.device]
			l.mu.Unlock()
			if !ours {
				continue // another program's to answer
			}
			// On a goroutine, as a change may write to the attributes of others.
			l.wg.Add(1)
			go func() {
				defer l.wg.Done()
				l.answer(e, change)
			}()
		}
	}
}

func (l *events) answer(e event, change func(Reconfig) error) {
	var err error
	if e.cmd == genlReconfigDevice {
		err = errors.ErrUnsupported
		if change != nil {
			err = change(e.reconfig)
		}
	}
	if m, err := e.reply(errnoStatus(err)); err == nil {
		// The kernel refuses answers that nobody waits for; there is nothing
		// to be done about it.
		l.out.Execute(m, l.family, netlink.Request|netlink.Acknowledge)
	}
}

// failed tells why events aren't answered any more, nil if they are.
func (l *events) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

func (l *events) close() error {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	err := errors.Join(l.in.Close(), l.out.Close())
	l.wg.Wait()
	return errors.Join(l.failure, err)
}
