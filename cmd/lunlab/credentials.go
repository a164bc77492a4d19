package main

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"lunlab/lab"
	"lunlab/target/iscsi"
)

// credentialsFor prints where the commands of commandsFor take user names and
// secrets from, if the target asks for them. Secrets themselves aren't printed.
func credentialsFor(b *strings.Builder, portal string, t *iscsi.Target, discovery *lab.CHAP) {
	i := slices.IndexFunc(t.Access, func(a iscsi.Access) bool { return a.CHAP != nil })
	if i >= 0 {
		a := t.Access[i]
		who := "Initiators"
		if a.Initiator != "" {
			who = "Initiators like " + a.Initiator
		}
		user, back := shellWord(a.CHAP.User), shellWord(a.CHAP.TargetUser)
		mutual := a.CHAP.TargetUser != ""
		fmt.Fprintf(b, "%s have to prove who they are (CHAP). With the secret of their side in $SECRET", who)
		if mutual {
			b.WriteString(", the target's in $TARGET_SECRET")
		}
		fmt.Fprintf(b, `, before the commands of libiscsi, QEMU and fio:
  export LIBISCSI_CHAP_USERNAME=%s LIBISCSI_CHAP_PASSWORD="$SECRET"
`, user)
		if mutual {
			fmt.Fprintf(b, "  export LIBISCSI_CHAP_TARGET_USERNAME=%s LIBISCSI_CHAP_TARGET_PASSWORD=\"$TARGET_SECRET\"\n", back)
		}
		b.WriteString("between iscsiadm's discovery and its --login:\n")
		set := func(key, value string) {
			fmt.Fprintf(b, "  iscsiadm -m node -T %s -p %s -o update -n node.session.auth.%s -v %s\n", t.Name, portal, key, value)
		}
		set("authmethod", "CHAP")
		set("username", user)
		set("password", `"$SECRET"`)
		if mutual {
			set("username_in", back)
			set("password_in", `"$TARGET_SECRET"`)
		}
		b.WriteString("and from Windows, instead of its QLoginTarget:\n")
		if mutual {
			b.WriteString("  iscsicli CHAPSecret TARGET_SECRET\n")
		}
		fmt.Fprintf(b, "  iscsicli QLoginTarget %s %s SECRET\n", t.Name, windowsWord(a.CHAP.User))
	}
	if discovery != nil {
		host, port, _ := net.SplitHostPort(portal)
		fmt.Fprintf(b, `Discovery asks for user %[1]s and a secret: libiscsi takes them from the same variables,
iscsiadm from discovery.sendtargets.auth.authmethod, .username and .password of
/etc/iscsi/iscsid.conf, and Windows from
  iscsicli QAddTargetPortal %[2]s %[3]s %[1]s SECRET
`, windowsWord(discovery.User), host, port)
	}
}

// shellWord is s as a shell takes it for one word.
func shellWord(s string) string {
	if plainWord(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// windowsWord is s as a program on Windows takes it for one argument.
func windowsWord(s string) string {
	if plainWord(s) {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
}

func plainWord(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:@", r))
	}) < 0
}
