package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"lunlab/lab"
)

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE…",
		Short: "Check configurations (lab.yaml) without opening what they name",
		Long: `Check configurations. Each mistake is a line, FILE:LINE:COLUMN: what is wrong and
what would be right. "-" is standard input. The exit status is 2 if there are any.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bad := 0
			for _, path := range args {
				c, err := loadOrRead(path, cmd.InOrStdin())
				if err != nil {
					bad++
					fmt.Fprintln(cmd.ErrOrStderr(), err)
					continue
				}
				luns := 0
				for _, t := range c.Targets {
					luns += len(t.LUNs)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: fine: %s on %s\n", c.Path, count(luns, "LUN"), count(len(c.Targets), "target"))
			}
			if bad > 0 {
				return fmt.Errorf("%d of %s can't be used", bad, count(len(args), "file"))
			}
			return nil
		},
	}
}

// loadOrRead loads the configuration at path, or reads it from in if that is "-". Its
// paths are from the working directory then.
func loadOrRead(path string, in io.Reader) (*lab.Config, error) {
	if path == "-" {
		return lab.Read("<stdin>", in)
	}
	return lab.Load(path)
}

func exampleCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "example",
		Short: "Print a configuration with every key explained",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(lab.Example)
			return err
		},
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
