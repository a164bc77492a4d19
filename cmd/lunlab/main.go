// Command lunlab presents SCSI logical units with chosen limits, runs a Linux
// kernel against them, and reports what the kernel did.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"lunlab/test/kernel"
)

func main() {
	kernel.Main() // when booted as a guest's init, it ends there
	root := &cobra.Command{
		Use:           "lunlab",
		Short:         "A SCSI target emulator, and a test bench for kernels that use it",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
	}
	root.AddCommand(
		ktestCommand(),
		rulesCommand(),
		simulateCommand(),
		serveCommand(),
		statusCommand(),
		faultCommand(),
		powercutCommand(),
		probeCommand(),
		attachCommand(),
		checkCommand(),
		exampleCommand(),
		agentCommand(), targetCommand(), shellCommand(),
	)
	// The first signal ends what runs in good order, the next at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := root.ExecuteContext(ctx)
	var status exitStatus
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintln(os.Stderr, "lunlab:", err)
		os.Exit(2)
	}
}

// version is the module's version or, of a build from a checkout, its commit.
func version() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return fmt.Sprintf("%s, %s", b.Main.Version, b.GoVersion)
}

// exitStatus ends lunlab with that status, when all has been said.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }
