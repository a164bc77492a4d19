// Command lunlab presents SCSI logical units with chosen limits, runs a Linux
// kernel against them, and reports what the kernel did.
package main

import (
	"fmt"
	"os"

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
	}
	root.AddCommand(
		rulesCommand(),
		serveCommand(),
		probeCommand(),
		attachCommand(),
		checkCommand(),
		exampleCommand(),
	)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "lunlab:", err)
		os.Exit(2)
	}
}
