package main

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIsTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null) || isTerminal(new(bytes.Buffer)) {
		t.Error("a terminal: /dev/null, or a buffer")
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	if !isTerminal(master) {
		t.Errorf("%s is no terminal", master.Name())
	}
}
