package scenario

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// disk is a block device under test.
type disk struct {
	name    string       // "sda"
	device  string       // "2:0:0:0"
	meter   meter        // nil where the target isn't ours
	witness *witness     // likewise, or it isn't in this kernel's machine
	remove  func() error // takes the host away, and the disk with it
}

// host is the name of the disk's host, "host2".
func (d *disk) host() string {
	n, _, _ := strings.Cut(d.device, ":")
	return "host" + n
}

// counter reads one of the SCSI device's counters, which sysfs has in hexadecimal.
func (d *disk) counter(name string) (uint64, error) {
	s, err := d.sysfs("device/" + name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(s, 0, 64)
}

// sysfs reads an attribute of the disk, its SCSI device or its host.
func (d *disk) sysfs(attr string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/sys/block", d.name, attr))
	return strings.TrimSpace(string(b)), err
}

func (d *disk) hostAttr(name string) (int, error) {
	return readInt("/sys/class/scsi_host/"+d.host(), name)
}

func (d *disk) queueDepth() (int, error) { return readInt("/sys/block/"+d.name, "device/queue_depth") }

func readInt(dir, name string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// set writes an attribute below the disk's sysfs folder.
func (d *disk) set(value any, attr string) error {
	return os.WriteFile(filepath.Join("/sys/block", d.name, attr), fmt.Append(nil, value), 0)
}

// waitQueue waits for the disk's queue attributes, which come a moment after
// its device node.
func (d *disk) waitQueue(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("/sys/block/%s/queue/scheduler did not come", d.name))
	defer cancel()
	for {
		if _, err := d.sysfs("queue/scheduler"); err == nil {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}
