//go:build race

package iscsi_test

const raceEnabled = true
