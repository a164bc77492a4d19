package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"lunlab/test/kernel"
	"lunlab/test/scenario"
)

// ktestShell gives this terminal to a shell in a guest.
func ktestShell(cmd *cobra.Command, cfg kernel.Config, consoleFile string, ss []scenario.Scenario) (err error) {
	if len(ss) != 1 {
		return fmt.Errorf("--shell has the disk of one limits scenario, and %d were named", len(ss))
	}
	cfg.Logf = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\r\n", args...) }
	consoleFile, console, err := prepareGuest(cmd.Context(), &cfg, consoleFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keepConsole(console, consoleFile)) }()
	code := 0
	err = withRaw(os.Stdin, func() (err error) {
		code, err = scenario.Shell(cmd.Context(), cfg, ss[0], cmd.InOrStdin(), cmd.OutOrStdout())
		return err
	})
	if err == nil && code != 0 {
		return exitStatus(code)
	}
	return err
}

// withRaw runs f while what is typed on a terminal is passed on as it is, Ctrl-C
// too. A file that is no terminal is left alone.
func withRaw(f *os.File, run func() error) (err error) {
	fd := int(f.Fd())
	had, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return run()
	}
	raw := *had
	raw.Iflag &^= unix.BRKINT | unix.ICRNL | unix.INLCR | unix.IGNCR | unix.ISTRIP | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.IoctlSetTermios(fd, unix.TCSETS, had)) }()
	return run()
}

// shellCommand is the guest's side of ktest --shell.
func shellCommand() *cobra.Command {
	return &cobra.Command{
		Use:    scenario.ShellCommand + " NAME",
		Short:  "Attach a scenario's disk and run a shell",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := scenario.GuestShell(context.WithoutCancel(cmd.Context()), args[0])
			var exit scenario.ShellExit
			if errors.As(err, &exit) {
				return exitStatus(int(exit))
			}
			return err
		},
	}
}
