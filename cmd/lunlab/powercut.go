package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lunlab/lab"
	"lunlab/lun"
	"lunlab/lun/fault/control"
)

func powercutCommand() *cobra.Command {
	var socket string
	var survive float64
	cmd := &cobra.Command{
		Use:   "powercut [TARGET/LUN]",
		Short: "Cut the power of LUNs of a running server that have a volatile cache",
		Long: `Cut the power of the LUNs of a running "lunlab serve" whose store has the key
"cache" in lab.yaml, or of one of them, and switch it on again. What the cache held
and was not flushed or written with FUA is lost, in whole blocks of 512 bytes; with
--survive, each of them had reached the medium with that probability. Initiators
get POWER ON OCCURRED; commands that ran meanwhile fail with it.`,
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

// faults is what rules can be added to.
func (s *served) faults(path string, units []*lab.Unit) ([]control.LUN, error) {
	return faultsOf(path, units, iscsiName, lun.ConnectionLink, lun.SessionLink)
}

// controls answers what changes a running server: /faults and /powercut.
func (s *served) controls() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/faults", control.Handler(func() []control.LUN {
		list, err := s.faults("", s.lab.Units())
		if err != nil {
			return nil // it was looked at when they were added
		}
		return list
	}))
	mux.HandleFunc("POST /powercut", s.powercut)
	return mux
}

func (s *served) powercut(w http.ResponseWriter, r *http.Request) {
	which := r.FormValue("lun")
	survive, err := strconv.ParseFloat(r.FormValue("survive"), 64)
	if err != nil || !(survive >= 0 && survive <= 1) {
		http.Error(w, fmt.Sprintf("survive is %q; want a number from 0 to 1", r.FormValue("survive")), http.StatusBadRequest)
		return
	}
	var said strings.Builder
	found := false
	for _, u := range s.lab.Units() {
		name := fmt.Sprintf("%s/%d", iscsiName(u.Target), u.Config.Number)
		if which != "" && which != name && !strings.HasSuffix(name, ":"+which) {
			continue
		}
		found = true
		err := u.CutPower(func(int64) bool { return rand.Float64() < survive })
		switch {
		case err == nil:
			fmt.Fprintf(&said, "%s lost its power\n", name)
		case which != "" || !errors.Is(err, lab.ErrNoCache):
			http.Error(w, fmt.Sprintf("%s: %v", name, err), http.StatusBadRequest)
			return
		}
	}
	switch {
	case !found:
		http.Error(w, fmt.Sprintf("there is no LUN %s; name it TARGET/LUN as `lunlab status` shows them", which), http.StatusBadRequest)
	case said.Len() == 0:
		http.Error(w, "no LUN has a cache that it could lose: none has the key cache in lab.yaml", http.StatusBadRequest)
	default:
		io.WriteString(w, said.String())
	}
}
