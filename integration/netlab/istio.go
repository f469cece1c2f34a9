package netlab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// IstioCNI puts rules in place as istio-cni does in a pod, DNS capture included, by one of its backends: "nft",
// "iptables-nft" or "iptables-legacy".
func IstioCNI(t testing.TB, n *NS, backend string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "istio")
	run := func(text, name string, args ...string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		MustRun(t, n, name, append(args, file)...)
	}
	if backend == "nft" {
		run(istioNft, "nft", "-f")
		return
	}
	v4 := strings.NewReplacer("LOOPBACK", "127.0.0.1/32", "PROBE", "169.254.7.127/32")
	v6 := strings.NewReplacer("LOOPBACK", "::1/128", "PROBE", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128")
	run(v4.Replace(istioIPTables), backend+"-restore", "--noflush")
	run(v6.Replace(istioIPTables), strings.Replace(backend, "ip", "ip6", 1)+"-restore", "--noflush")
}

const istioIPTables = `*mangle
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark
COMMIT
*nat
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -s PROBE -p tcp -j ACCEPT
-A ISTIO_PRERT ! -d LOOPBACK -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006
-A ISTIO_OUTPUT -d PROBE -p tcp -j ACCEPT
-A ISTIO_OUTPUT ! -o lo -p udp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT ! -d LOOPBACK -p tcp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d LOOPBACK -o lo -p tcp -j ACCEPT
-A ISTIO_OUTPUT ! -d LOOPBACK -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001
COMMIT
*raw
:ISTIO_PRERT - [0:0]
:ISTIO_OUTPUT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -p udp --sport 53 -m mark ! --mark 0x539/0xfff -j CT --zone 1
-A ISTIO_OUTPUT -p udp --dport 53 -m mark --mark 0x539/0xfff -j CT --zone 1
COMMIT
`

const istioNft = `table inet istio-ambient-mangle {
	chain istio-prerouting { meta mark & 0xfff == 0x539 counter ct mark set ct mark & 0xfffff000 | 0x111; }
	chain istio-output { ct mark & 0xfff == 0x111 counter meta mark set ct mark; }
	chain prerouting { type filter hook prerouting priority -150; counter jump istio-prerouting; }
	chain output { type route hook output priority -150; counter jump istio-output; }
}
table inet istio-ambient-nat {
	chain istio-prerouting {
		ip saddr 169.254.7.127 meta l4proto tcp counter accept
		ip6 saddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff meta l4proto tcp counter accept
		ip daddr != 127.0.0.1 tcp dport != 15008 meta mark & 0xfff != 0x539 counter redirect to :15006
		ip6 daddr != ::1 tcp dport != 15008 meta mark & 0xfff != 0x539 counter redirect to :15006
	}
	chain istio-output {
		ip daddr 169.254.7.127 meta l4proto tcp counter accept
		ip6 daddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff meta l4proto tcp counter accept
		oifname != "lo" udp dport 53 meta mark & 0xfff != 0x539 counter redirect to :15053
		ip daddr != 127.0.0.1 tcp dport 53 meta mark & 0xfff != 0x539 counter redirect to :15053
		ip6 daddr != ::1 tcp dport 53 meta mark & 0xfff != 0x539 counter redirect to :15053
		meta l4proto tcp meta mark & 0xfff == 0x111 counter accept
		oifname "lo" ip daddr != 127.0.0.1 meta l4proto tcp counter accept
		oifname "lo" ip6 daddr != ::1 meta l4proto tcp counter accept
		ip daddr != 127.0.0.1 meta l4proto tcp meta mark & 0xfff != 0x539 counter redirect to :15001
		ip6 daddr != ::1 meta l4proto tcp meta mark & 0xfff != 0x539 counter redirect to :15001
	}
	chain prerouting { type nat hook prerouting priority -100; counter jump istio-prerouting; }
	chain output { type nat hook output priority -100; counter jump istio-output; }
}
table inet istio-ambient-raw {
	chain istio-prerouting { udp sport 53 meta mark & 0xfff != 0x539 counter ct zone set 1; }
	chain istio-output { udp dport 53 meta mark & 0xfff == 0x539 counter ct zone set 1; }
	chain prerouting { type filter hook prerouting priority -300; counter jump istio-prerouting; }
	chain output { type filter hook output priority -300; counter jump istio-output; }
}
`
