package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"lunlab/lab"
	"lunlab/target/iscsi"
)

func statusCommand() *cobra.Command {
	var (
		socket string
		asJSON bool
		watch  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what a running server is doing",
		Long: `Show the sessions of a running "lunlab serve", its LUNs, the commands in flight
and the most there were, and what was answered how fast. With --watch, again and
again until Ctrl-C.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := findSocket(socket, false)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			for {
				err := showStatus(ctx, cmd.OutOrStdout(), path, asJSON)
				if watch > 0 && ctx.Err() != nil {
					return nil // that is how it ends
				}
				if err != nil {
					return err
				}
				if watch <= 0 {
					return nil
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(watch):
				}
			}
		},
	}
	cmd.Flags().StringVar(&socket, "socket", "", "the server's socket, `path` (default the only one in the user's runtime folder)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, a document for each look")
	cmd.Flags().DurationVar(&watch, "watch", 0, "look again after this `time`")
	cmd.Flag("watch").NoOptDefVal = "1s"
	return cmd
}

// findSocket is the socket that was named, or that of the only server that runs;
// attached says that it may be one of "lunlab attach".
func findSocket(path string, attached bool) (string, error) {
	if path != "" {
		return path, nil
	}
	dir, err := runtimeDir()
	if err != nil {
		return "", err
	}
	var live []string
	all, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
	for _, p := range all {
		if !attached && strings.HasPrefix(filepath.Base(p), attachedPrefix) {
			continue
		}
		if c, err := net.Dial("unix", p); err == nil {
			c.Close()
			live = append(live, p)
		}
	}
	switch len(live) {
	case 0:
		return "", errors.New("no server of this user runs; start one: lunlab serve")
	case 1:
		return live[0], nil
	}
	return "", fmt.Errorf("several servers run; choose one:\n  --socket %s", strings.Join(live, "\n  --socket "))
}

// unixClient sends all requests to a server on a unix socket.
func unixClient(path string) *http.Client {
	return &http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			},
		},
	}
}

func showStatus(ctx context.Context, w io.Writer, path string, asJSON bool) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://lunlab/status", nil)
	if err != nil {
		return err
	}
	resp, err := unixClient(path).Do(req)
	if err != nil {
		return fmt.Errorf("no server answers on %s: %w", path, errors.Unwrap(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	var st iscsi.Status
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(st)
	}
	return printStatus(w, st)
}

func printStatus(w io.Writer, st iscsi.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, tgt := range st.Targets {
		fmt.Fprintf(t, "target %s (can_queue %d, hw_queues %d)\n", tgt.Name, tgt.CanQueue, tgt.HWQueues)
		fmt.Fprintln(t, "  LUN\tIN FLIGHT\tMOST\tCMD_PER_LUN\tFULL\tCOMMANDS\tNOT GOOD\tABORTED\tREAD\tWRITTEN\tP50\tP99\tP99.9")
		for _, u := range tgt.LUNs {
			var commands uint64
			for _, n := range u.Statuses {
				commands += n
			}
			limit := "-"
			if u.CmdPerLUN > 0 {
				limit = fmt.Sprint(u.CmdPerLUN)
			}
			fmt.Fprintf(t, "  %d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%v\t%v\t%v\n", u.Number, u.InFlight, u.MostInFlight, limit,
				u.TaskSetFull, commands, commands-u.Statuses[0], u.Aborted, lab.FormatSize(u.ReadBytes), lab.FormatSize(u.WrittenBytes),
				round(u.LatencyP50), round(u.LatencyP99), round(u.LatencyP999))
		}
		t.Flush()
		for _, u := range tgt.LUNs {
			if len(u.Opcodes) > 0 {
				fmt.Fprintf(t, "  LUN %d by operation code:%s; by status:%s\n", u.Number, counts(u.Opcodes), counts(u.Statuses))
			}
		}
	}
	fmt.Fprintf(t, "%d sessions, %d connections, %s of buffers\n", len(st.Sessions), st.Connections, lab.FormatSize(uint64(st.BufferBytes)))
	for _, x := range st.Sessions {
		to := x.Target
		if to == "" {
			to = "discovery"
		}
		fmt.Fprintf(t, "%s,i,%s -> %s, group %d: %d in flight, most %d, window %d to %d\n", x.Initiator, x.ISID, to, x.PortalGroup,
			x.InFlight, x.MostInFlight, x.ExpCmdSN, x.MaxCmdSN)
		p := x.Params
		fmt.Fprintf(t, "  InitialR2T=%s ImmediateData=%s FirstBurstLength=%d MaxBurstLength=%d MaxOutstandingR2T=%d MaxConnections=%d ErrorRecoveryLevel=%d\n",
			yes(p.InitialR2T), yes(p.ImmediateData), p.FirstBurstLength, p.MaxBurstLength, p.MaxOutstandingR2T, p.MaxConnections, p.ErrorRecoveryLevel)
		fmt.Fprintf(t, "  DataPDUInOrder=%s DataSequenceInOrder=%s DefaultTime2Wait=%d DefaultTime2Retain=%d iSCSIProtocolLevel=%d TaskReporting=%s\n",
			yes(p.DataPDUInOrder), yes(p.DataSequenceInOrder), p.DefaultTime2Wait, p.DefaultTime2Retain, p.ISCSIProtocolLevel, p.TaskReporting)
		for _, c := range x.Connections {
			fmt.Fprintf(t, "  connection %d from %s to %s since %s: HeaderDigest=%s DataDigest=%s MaxRecvDataSegmentLength=%d, %s sent\n",
				c.CID, c.From, c.To, c.Since.Format(time.TimeOnly), digest(c.HeaderDigest), digest(c.DataDigest), c.MaxRecvDataSegmentLength, lab.FormatSize(c.SentBytes))
		}
	}
	return t.Flush()
}

// counts lists how often there was what, by code.
func counts(m map[uint8]uint64) string {
	var b strings.Builder
	for _, code := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, " %02x:%d", code, m[code])
	}
	return b.String()
}

func yes(b bool) string {
	if b {
		return "Yes"
	}
	return "No"
}

func digest(b bool) string {
	if b {
		return "CRC32C"
	}
	return "None"
}

func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}
