// Package stories has no code but tests: what happens to a node in the field, told in
// testdata as scripts that can be read without knowing any Go, and played for real. Agent,
// plugin and node proxy are the built binaries, libcni is the runtime, pods are network
// namespaces, and whether traffic is captured is seen from both its ends.
//
//	go test ./integration/stories                                  # as root
//	go test ./integration/stories -v -run Stories/agent-killed     # one, line by line
//
// The scripts are testscript's: see its documentation for stdout, stderr, cmp, grep and
// the rest. A line that begins with ! has to fail. These are the commands of ours:
//
//	node [LINE...]                  make the node; each LINE is one of the agent's configuration
//	agent VERB                      start, stop (SIGTERM), kill (-9), pause or resume the agent
//	proxy VERB [FLAG...]            the same for the node proxy, which is nodeproxy
//	pod NAME [uid=UID] [KEY=VALUE]  write the manifest of a pod with these labels, in pods/NAME.json
//	label NAME KEY=VALUE            set a label of the pod
//	unlabel NAME KEY                take it away
//	annotate NAME KEY=VALUE         set an annotation
//	chain in|out                    put fairlead-cni into the runtime's list of plugins, where it is at
//	                                first, or take it out
//	add NAME [SANDBOX] [&]          have the runtime start the pod, in a sandbox of the pod's name or
//	                                another (ADD); with & the story goes on meanwhile
//	finish SANDBOX                  wait for the end of an ADD that was begun with &
//	del SANDBOX                     have the runtime delete the sandbox (DEL); again, if it is gone
//	connect SANDBOX [KEPT]          let the app in the pod connect to a web server outside, and print
//	                                which way that goes: "directly" or "through the proxy"; the
//	                                connection is closed, or stays open under a name
//	send SANDBOX KEPT               let the app use that connection
//	hangup SANDBOX KEPT             let the app close it
//	resolve SANDBOX                 let the app ask its name server, and print the way, as connect does
//	rules SANDBOX                   print all that a capture puts into the pod, or "nothing"
//	status [FLAG...]                print what fairlead status prints
//	drain [FLAG...]                 print what fairlead drain prints; that something is left is a failure
//	uninstall [FLAG...]             the same for fairlead uninstall
//	host                            print what the agent has put into the node's own namespace, or "nothing"
//	records                         print the UIDs of the pods that the agent has on record, or "nothing"
//	eventually PATTERN COMMAND...   repeat one of these commands until it succeeds and its output matches
//
// Pods are in the namespace shop, and the UID of web is uid-of-web unless said otherwise. The
// agent's run directory is run. An agent that is started has answered when the next line is
// read, a proxy is connected to the agent if that runs.
//
// # Failures it survives
//
//   - A story that fails: its last lines and the logs of agent, proxy and plugin are shown,
//     and daemons, plugins and namespaces end with it.
//   - A daemon that ends by itself: nothing is waited for any longer, and its last words are
//     shown.
//   - The test is interrupted or killed: all that was made hangs on private PID, mount and
//     network namespaces.
//   - A machine that is busy: nothing is slept for, and no time is measured. The one thing
//     that has to happen in time is what a story does before a drain is over.
package stories
