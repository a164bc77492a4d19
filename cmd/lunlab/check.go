package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"lunlab/lab"
)

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE…",
		Short: "Check configurations (lab.yaml) without opening what they name",
		Long: `Check configurations. Each mistake is a line, FILE:LINE:COLUMN: what is wrong and
what would be right. The exit status is 2 if there are any.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bad := 0
			for _, path := range args {
				c, err := lab.Load(path)
				if err != nil {
					bad++
					fmt.Fprintln(cmd.ErrOrStderr(), err)
					continue
				}
				luns := 0
				for _, t := range c.Targets {
					luns += len(t.LUNs)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: fine: %s on %s\n", path, count(luns, "LUN"), count(len(c.Targets), "target"))
			}
			if bad > 0 {
				return fmt.Errorf("%d of %s can't be used", bad, count(len(args), "file"))
			}
			return nil
		},
	}
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
