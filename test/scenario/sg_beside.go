package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"lunlab/queue"
)

// sgBeside sends commands through SG_IO on the disk and through its bsg node
// while the disk is busy.
var sgBeside = Scenario{
	Name:    "sg/beside",
	Shows:   "whether commands passed through SG_IO and bsg beside I/O end well, with the right data, within the device's queue_depth",
	Hosts:   []string{TCMLoop},
	Timeout: 2 * time.Minute,
	run: onLoop(queue.Limits{HWQueues: 2, CanQueue: 64, CmdPerLUN: 8}, 1, func(ctx context.Context, r *run, h *loopHost) error {
		const commands = 100
		d := h.disks[0]
		want := bytes.Repeat([]byte("lunlab. "), 512)
		if err := writeStart(d.path(), want); err != nil {
			return err
		}
		nodes := []struct {
			path string
			send func(fd int, cdb, data []byte) error
		}{{d.path(), sgRead}, {"/dev/bsg/" + d.device, bsgRead}}
		d.meter.Mark()
		job := verified(d, 32, 2)
		job.args = append(job.args, "--time_based", "--runtime=600", "--verify_backlog=64", "--offset=1m")
		fio, err := job.start(ctx)
		if err != nil {
			return err
		}
		defer fio.kill()
		if err := r.goesOn(ctx, d); err != nil {
			return err
		}
		r.step("pass commands through")
		for _, n := range nodes {
			f, err := os.OpenFile(n.path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			good := 0
			for range commands {
				got := make([]byte, len(want))
				blocks := byte(len(want) / 512)
				// READ(10) of the first blocks.
				err := within(ctx, func() error { return n.send(int(f.Fd()), []byte{0x28, 0, 0, 0, 0, 0, 0, 0, blocks, 0}, got) })
				if err != nil {
					return errors.Join(fmt.Errorf("%s: %w", n.path, err), f.Close())
				}
				if bytes.Equal(got, want) {
					good++
				}
			}
			if err := f.Close(); err != nil {
				return err
			}
			r.check("commands through "+n.path+" that read what was written", commands, good, "")
		}
		_, err = fio.stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.checkNone("the I/O beside", err)
		most := d.meter.Most()
		r.Checks = append(r.Checks, Check{
			What: "most in flight", Predicted: "at most 8", Observed: fmt.Sprint(most), OK: most <= 8, Why: "what is passed through takes a budget token, too",
		})
		r.fact("most in flight", most)
		return nil
	}),
}

// writeStart writes what a disk begins with.
func writeStart(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_SYNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

const sgIO = 0x2285 // ioctl SG_IO

// sgHeader is struct sg_io_hdr (include/scsi/sg.h).
type sgHeader struct {
	interfaceID, direction   int32
	cdbLen, maxSense         uint8
	iovecs                   uint16
	dataLen                  uint32
	data, cdb, sense         *byte
	timeout, flags           uint32
	packID                   int32
	user                     uintptr
	status, masked, message  uint8
	senseLen                 uint8
	hostStatus, driverStatus uint16
	residual                 int32
	duration, info           uint32
}

// sgRead has a command that reads carried out through SG_IO, sgWrite one that writes.
func sgRead(fd int, cdb, data []byte) error  { return sgTransfer(fd, -3, cdb, data) }
func sgWrite(fd int, cdb, data []byte) error { return sgTransfer(fd, -2, cdb, data) }

func sgTransfer(fd int, direction int32, cdb, data []byte) error {
	sense := make([]byte, 64)
	h := sgHeader{
		interfaceID: 'S', direction: direction, cdbLen: uint8(len(cdb)), maxSense: uint8(len(sense)), dataLen: uint32(len(data)),
		data: &data[0], cdb: &cdb[0], sense: &sense[0], timeout: 60_000,
	}
	if err := ioctl(fd, unsafe.Pointer(&h), h.data, h.cdb, h.sense); err != nil {
		return err
	}
	if h.status != 0 || h.hostStatus != 0 || h.driverStatus != 0 || h.residual != 0 {
		return fmt.Errorf("status %#x, host %#x, driver %#x, residual %d", h.status, h.hostStatus, h.driverStatus, h.residual)
	}
	return nil
}

// bsgHeader is struct sg_io_v4 (include/uapi/linux/bsg.h).
type bsgHeader struct {
	guard                                      int32
	protocol, subprotocol, requestLen          uint32
	request                                    *byte
	requestTag                                 uint64
	attribute, priority, extra, maxResponse    uint32
	response                                   *byte
	outIovecs, outLen, inIovecs, inLen         uint32
	out                                        *byte
	in                                         *byte
	timeout, flags                             uint32
	user                                       uint64
	spareIn                                    uint32
	driverStatus, transportStatus, deviceState uint32
	retryDelay, info, duration, responseLen    uint32
	inResidual, outResidual                    int32
	generatedTag                               uint64
	spareOut, padding                          uint32
}

// bsgRead has a command that reads carried out through a bsg node.
func bsgRead(fd int, cdb, data []byte) error {
	sense := make([]byte, 64)
	h := bsgHeader{
		guard: 'Q', requestLen: uint32(len(cdb)), request: &cdb[0], maxResponse: uint32(len(sense)), response: &sense[0],
		inLen: uint32(len(data)), in: &data[0], timeout: 60_000,
	}
	if err := ioctl(fd, unsafe.Pointer(&h), h.in, h.request, h.response); err != nil {
		return err
	}
	if h.driverStatus != 0 || h.transportStatus != 0 || h.deviceState != 0 || h.inResidual != 0 {
		return fmt.Errorf("status %#x, transport %#x, driver %#x, residual %d", h.deviceState, h.transportStatus, h.driverStatus, h.inResidual)
	}
	return nil
}

// ioctl is SG_IO with a header that has these pointers in it.
func ioctl(fd int, header unsafe.Pointer, pointers ...*byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	for _, p := range pointers {
		pin.Pin(p)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), sgIO, uintptr(header)); errno != 0 {
		return fmt.Errorf("SG_IO: %w", errno)
	}
	return nil
}
