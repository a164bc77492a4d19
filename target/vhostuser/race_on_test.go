//go:build race

package vhostuser_test

const raceEnabled = true
