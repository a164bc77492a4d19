package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sgIOHeader is the kernel's struct sg_io_hdr, of its version 3 interface, on a
// 64-bit machine.
type sgIOHeader struct {
	interfaceID    int32
	dxferDirection int32
	cmdLen         uint8
	mxSBLen        uint8
	iovecCount     uint16
	dxferLen       uint32
	dxferp         uintptr
	cmdp           *byte
	sbp            *byte
	timeout        uint32 // ms
	flags          uint32
	packID         int32
	usrPtr         uintptr
	status         uint8
	maskedStatus   uint8
	msgStatus      uint8
	sbLenWr        uint8
	hostStatus     uint16
	driverStatus   uint16
	resid          int32
	duration       uint32
	info           uint32
}

const (
	sgIO        = 0x2285
	sgDxferNone = -1
)

// Poke sends the device at an address a TEST UNIT READY (SPC-5 6.44), so that a
// probe sees it. The device's answer doesn't matter. It fails if the device has
// neither a block device nor an sg device.
func Poke(address string) error {
	dir := filepath.Join(sysDevices, address, "device")
	nodes, _ := filepath.Glob(filepath.Join(dir, "block", "*"))
	generic, _ := filepath.Glob(filepath.Join(dir, "scsi_generic", "*"))
	nodes = append(nodes, generic...)
	if len(nodes) == 0 {
		return fmt.Errorf("probe: %s has no block device and no sg device to send a command to (modprobe sg)", address)
	}
	var errs []error
	for _, n := range nodes {
		err := testUnitReady(filepath.Join("/dev", filepath.Base(n)))
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("probe: TEST UNIT READY to %s: %w", address, errors.Join(errs...))
}

func testUnitReady(node string) error {
	f, err := os.OpenFile(node, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var (
		cdb   [6]byte // operation code 00h
		sense [32]byte
		pin   runtime.Pinner
	)
	pin.Pin(&cdb[0])
	pin.Pin(&sense[0])
	defer pin.Unpin()
	h := sgIOHeader{interfaceID: 'S', dxferDirection: sgDxferNone, cmdLen: uint8(len(cdb)), mxSBLen: uint8(len(sense)), cmdp: &cdb[0], sbp: &sense[0], timeout: 5000}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), sgIO, uintptr(unsafe.Pointer(&h))); errno != 0 {
		return fmt.Errorf("%s: SG_IO: %w", node, errno)
	}
	return nil
}
