package tcmu_test

import (
	"context"
	"fmt"
	"log"

	"lunlab/lun"
	"lunlab/lun/store/mem"
	"lunlab/target/tcmu"
)

// A memory disk on a SCSI host that takes 64 commands at once.
func Example() {
	ctx := context.Background()
	if err := tcmu.Prepare(ctx, tcmu.Options{}); err != nil {
		log.Fatal(err)
	}
	engine, err := tcmu.Open(tcmu.Options{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := mem.New(1 << 30)
	if err != nil {
		log.Fatal(err)
	}
	disk, err := lun.NewDisk(store, lun.DiskOptions{})
	if err != nil {
		log.Fatal(err)
	}
	dev, err := engine.Create(ctx, tcmu.Config{Name: "example", Size: 1 << 30}, disk)
	if err != nil {
		log.Fatal(err)
	}
	host, err := engine.CreateLoop(ctx, tcmu.LoopConfig{WWN: "naa.5001405000000101", CanQueue: 64, CmdPerLUN: 64})
	if err != nil {
		log.Fatal(err)
	}
	sd, err := host.Attach(ctx, dev, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sd.Block, host.Limits())

	// And off again.
	for _, step := range []func() error{
		func() error { return host.Close(ctx) },
		func() error { return dev.Close(ctx) },
		engine.Close,
		disk.Close,
	} {
		if err := step(); err != nil {
			log.Fatal(err)
		}
	}
}
