package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func powercutCommand() *cobra.Command {
	var socket string
	var survive float64
	cmd := &cobra.Command{
		Use:   "powercut [TARGET/LUN]",
		Short: "Cut the power of LUNs of a running server that have a volatile cache",
		Long: `Cut the power of the LUNs of a running "lunlab serve" or "lunlab attach" whose store
has the key "cache" in lab.yaml, or of one of them, and switch it on again. What the
cache held and was not flushed or written with FUA is lost, in whole blocks of 512
bytes; with --survive, each of them had reached the medium with that probability.
Initiators get POWER ON OCCURRED; commands that ran meanwhile fail with it. A LUN is
named as for "lunlab fault".`,
		Example: "  lunlab powercut disks/0 --survive 0.5",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := findSocket(socket, true)
			if err != nil {
				return err
			}
			q := url.Values{"survive": {fmt.Sprint(survive)}}
			if len(args) > 0 {
				q.Set("lun", args[0])
			}
			return askPowercut(cmd.Context(), cmd.OutOrStdout(), path, q)
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "the server's socket, `path` (default the only one in the user's runtime folder)")
	cmd.Flags().Float64Var(&survive, "survive", 0, "`probability` for a block to survive, 0 to 1")
	return cmd
}

func askPowercut(ctx context.Context, stdout io.Writer, socket string, q url.Values) error {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://lunlab/powercut?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no server answers on %s: %w", socket, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(b)))
	}
	_, err = stdout.Write(b)
	return err
}
