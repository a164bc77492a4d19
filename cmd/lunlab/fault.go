package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lunlab/lun/fault/control"
)

func faultCommand() *cobra.Command {
	var o faultOptions
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Make LUNs of a running server fail on purpose",
		Long: `Make LUNs of a running "lunlab serve" or "lunlab attach" fail on purpose. A rule
says which commands fail, and how; lab.yaml takes the same rules, as the list
"faults" of a LUN. LUNs are named TARGET/LUN as "lunlab status" and "lunlab attach"
show them; what comes after the target's last colon is enough, and with one target,
so is the number.

Which commands, all that apply:
  cmd=NAME,…       as the standards name them: read10, mode-sense; read is a READ of
                   any length; or operation codes: 0x28, with service action 0x9e/0x10
  lba=N            that touch the block, or a range: N-M, N+COUNT
  initiator=GLOB   of such an initiator: iqn.2026-01.example:*
  above=N          while N others are in flight, or more
  after=T for=T    from that time on after the rule was added, and so long
  nth=N every=N    the N-th of these; each N-th
  probability=P    by chance, 0.01 or 1%; seed=N gives other chances, always the same
  count=N          N times at the most

What becomes of them, one of:
  status=S         busy, task-set-full, reservation-conflict, condition-met, or 0x28;
                   good is a write that is lost
  sense=K/ASC/ASCQ medium-error/11/00 or 3/11/00; with info=lba or info=N,
                   field=cdb:2.7 or field=data:4, deferred, descriptor
  medium-error     the blocks of lba=… can't be read until they are written
  attention=A/Q    a unit attention for all initiators: 2a/09
  never            no answer, until the command is aborted
  answer-after-abort  the answer comes when the command was aborted, not before
  short=N          only N bytes come, and a residual
  corrupt=O+N      N bytes from byte O on are flipped; ^MASK only these bits, =BYTE set
  drop=LINK        connection or session (iSCSI), ring (TCMU)
  stall            the LUN stands still until the rule is cleared
With status, sense and never, "execute" has the command executed all the same.

And before that, or by itself:
  delay=T          or uniform:1ms,5ms normal:5ms,1ms lognormal:5ms,0.5
                   exponential:5ms percentiles:50=1ms,99=10ms,100=1s

Rules are looked at in the order in which they were added; the first that decides
on a command's answer is the last.`,
		Example: `  lunlab fault add 0 cmd=read lba=1000-1999 medium-error
  lunlab fault add disks/0 above=8 status=task-set-full
  lunlab fault add 0 cmd=write every=100 delay=percentiles:50=1ms,99=20ms,100=2s
  lunlab fault add 0 cmd=synchronize-cache nth=3 sense=4/44/00
  lunlab fault add 0 'initiator=iqn.2026-01.example:*' after=10s for=5s stall
  lunlab fault list
  lunlab fault clear 0 2`,
	}
	cmd.PersistentFlags().StringVar(&o.socket, "socket", "", "the server's socket, `path` (default the only one in the user's runtime folder)")
	cmd.PersistentFlags().BoolVar(&o.json, "json", false, "print JSON")

	clear := &cobra.Command{
		Use:   "clear TARGET/LUN [NUMBER…]",
		Short: "Remove rules: those with these numbers, or all of the LUN",
		Args:  cobra.ArbitraryArgs,
		RunE:  o.clear,
	}
	clear.Flags().BoolVar(&o.all, "all", false, "remove the rules of all LUNs")
	cmd.AddCommand(
		&cobra.Command{
			Use:     "add TARGET/LUN WORD…",
			Short:   "Put a rule in force, after the others",
			Long:    "Put a rule in force, after the others, and print its number. \"lunlab fault --help\"\nhas the words.",
			Example: "  lunlab fault add disks/0 cmd=read lba=1000-1999 medium-error",
			Args:    cobra.MinimumNArgs(2),
			RunE:    o.add,
		},
		&cobra.Command{
			Use:   "list",
			Short: "List the rules, and how often each has matched and fired",
			Long: `List the rules of all LUNs in their order. MATCHED counts the commands that met a
rule's conditions (nth, every, probability and count apart), FIRED those that
something became of, HELD those that wait now.`,
			Args: cobra.NoArgs,
			RunE: o.list,
		},
		clear,
	)
	return cmd
}

type faultOptions struct {
	socket string
	json   bool
	all    bool
}

func (o *faultOptions) client() (control.Client, error) {
	path, err := findSocket(o.socket, true)
	return control.Client{Name: path, HTTP: unixClient(path)}, err
}

func (o *faultOptions) print(w io.Writer, v any, text string) error {
	if o.json {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	_, err := fmt.Fprint(w, text)
	return err
}

func (o *faultOptions) add(cmd *cobra.Command, args []string) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	id, err := c.Add(cmd.Context(), args[0], strings.Join(args[1:], " "))
	if err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), map[string]uint64{"id": id}, fmt.Sprintf("rule %d\n", id))
}

func (o *faultOptions) clear(cmd *cobra.Command, args []string) error {
	if o.all != (len(args) == 0) {
		return errors.New("name a LUN, as TARGET/LUN, or all of them: --all")
	}
	var lun string
	var ids []uint64
	for i, a := range args {
		if i == 0 {
			lun = a
			continue
		}
		id, err := strconv.ParseUint(a, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is no number of a rule; \"lunlab fault list\" shows them", a)
		}
		ids = append(ids, id)
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	n, err := c.Remove(cmd.Context(), lun, ids...)
	if err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), map[string]int{"removed": n}, fmt.Sprintf("%s removed\n", count(n, "rule")))
}

func (o *faultOptions) list(cmd *cobra.Command, _ []string) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	luns, err := c.List(cmd.Context())
	if err != nil {
		return err
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LUN\tNUMBER\tMATCHED\tFIRED\tHELD\tRULE")
	none := true
	for _, l := range luns {
		for _, r := range l.Rules {
			none = false
			text := r.Rule
			if r.Bad > 0 {
				text += fmt.Sprintf("  (%s bad)", count(int(r.Bad), "block"))
			}
			fmt.Fprintf(t, "%s/%d\t%d\t%d\t%d\t%d\t%s\n", l.Target, l.Number, r.ID, r.Matched, r.Fired, r.Held, text)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if none {
		b.Reset()
		fmt.Fprintln(&b, "no rules")
	}
	return o.print(cmd.OutOrStdout(), luns, b.String())
}
