// Package netlab makes networks out of Linux network namespaces, for kernel tests
// and for the demo: namespaces, veth pairs, switches, echo and name servers, relays,
// and sockets and daemons inside them.
//
// Everything happens in network, mount and PID namespaces of the program's own:
// [Isolate] executes the program once more in them, so that the machine's own
// network, mounts and processes are never touched. A test package says so in its
// TestMain, through [Main], which also counts the kernel tests that really ran:
//
//	func TestMain(m *testing.M) { netlab.Main(m, 12) }
//
//	func TestSomething(t *testing.T) {
//		netlab.Kernel(t)
//		app, peer := netlab.NewNS(t, "app"), netlab.NewNS(t, "peer")
//		netlab.Connect(t,
//			netlab.Port{NS: app, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
//			netlab.Port{NS: peer, Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
//		netlab.ServeEcho(t, peer, "web", "tcp", "10.0.0.2:80")
//		reply := netlab.Ask(t, app, "tcp", "10.0.0.2:80")
//		…reply.Server, reply.Peer
//	}
//
// What takes no testing.TB returns errors, and is there for ordinary programs.
//
// # Failures it survives
//
//   - The program is interrupted or killed: everything it made hangs on its PID
//     namespace, whose first process dies with it.
//   - A kernel test is left out silently: without root it is skipped aloud, under
//     FAIRLEAD_NO_SKIP=1 it fails, and the number that ran is compared with the
//     number there should be.
//   - A test leaves a file descriptor, and so a namespace, behind: [CheckLeaks].
//   - A daemon that ends by itself, or does not end when it is told to: whoever waits
//     for it gets an error with its last words, and does not wait any longer.
package netlab
