package main

import (
	"net"
	"os"
	"testing"
	"time"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target"
	"lunlab/target/iscsi"
)

// TestDrive sees that the client moves what it says, with each shape of transfer.
func TestDrive(t *testing.T) {
	s, err := mem.New(lunSize)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := target.New()
	u, err := d.Add(0, disk, target.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := iscsi.NewServer(iscsi.Options{Targets: []*iscsi.Target{{Name: targetName, Device: d}}})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(ln)
	at := &server{name: "here", address: ln.Addr().String(), target: targetName}
	for _, w := range []workload{
		{Name: "small reads", Bytes: 4096, Depth: 32, Connections: 2},
		{Name: "small writes", Write: true, Bytes: 4096, Depth: 32, Connections: 2},
		{Name: "large reads", Sequential: true, Bytes: 256 << 10, Depth: 4, Connections: 1},
		{Name: "large writes", Write: true, Sequential: true, Bytes: 256 << 10, Depth: 4, Connections: 1},
		{Name: "writes that need R2Ts", Write: true, Sequential: true, Bytes: 1 << 20, Depth: 2, Connections: 1},
	} {
		t.Run(w.Name, func(t *testing.T) {
			before := u.Stats()
			got, err := drive(at, w, 100*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			after := u.Stats()
			moved := after.Read + after.Written - before.Read - before.Written
			if want := uint64(len(got.latencies)) * uint64(w.Bytes); moved != want || want == 0 {
				t.Errorf("the LUN moved %d bytes, the client says %d", moved, want)
			}
			if most := u.MostInFlight(); most > 64 {
				t.Errorf("%d in flight", most)
			}
		})
	}
}

func TestEcho(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	memory := make([]byte, lunSize)
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go echo(nc, memory)
		}
	}()
	s := &server{name: "echo", address: ln.Addr().String(), echo: true}
	for _, w := range workloads() {
		if w.Connections > 1 || w.Depth == 8 && w.Bytes == 4096 {
			continue
		}
		if got, err := drive(s, w, 20*time.Millisecond); err != nil || len(got.latencies) < w.Depth {
			t.Errorf("%s: %d done, %v", w.Name, len(got.latencies), err)
		}
	}
}

func TestProcess(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
	}
	after, err := cpuTime(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("CPU time %v, then %v (%v)", before, after, err)
	}
	if rss, err := peakRSS(os.Getpid()); err != nil || rss < 1<<20 {
		t.Errorf("peak RSS %d, %v", rss, err)
	}
}
