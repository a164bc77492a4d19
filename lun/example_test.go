package lun_test

import (
	"fmt"
	"log"

	"lunlab/lun"
	"lunlab/lun/store/mem"
)

// A lun.Unit over any store in ten lines.
func ExampleNewDisk() {
	s, err := mem.New(1 << 40) // or any store.Store of your own
	if err != nil {
		log.Fatal(err)
	}
	disk, err := lun.NewDisk(s, lun.DiskOptions{Product: "example", Thin: true})
	if err != nil {
		log.Fatal(err)
	}
	defer disk.Close()
	data := make([]byte, 36)
	c := lun.Command{Nexus: &lun.Nexus{Name: "me"}, CDB: []byte{0x12, 0, 0, 0, 36, 0}, DataIn: [][]byte{data}}
	disk.Execute(&c)
	fmt.Printf("status %d, %d bytes: %q\n", c.Status, c.InLen, data[8:])
	// Output: status 0, 36 bytes: "LUNLAB  example         0001"
}
