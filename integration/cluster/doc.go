// Package cluster makes a real Kubernetes cluster out of namespaces, on one machine
// and without touching it: etcd, API server, controller manager, scheduler; and nodes,
// each with kubelet, kube-proxy, containerd, runc and the reference CNI plugins. It is
// for end-to-end tests, and, through the command cluster, for people who want to play:
// README.md says how.
//
//	c, err := cluster.Start(ctx, cluster.Config{Nodes: 2})
//	…
//	defer c.Close()
//	out, err := c.Kubectl(ctx, "get", "pods", "-A")
//	conn, err := c.Dial(ctx, "tcp", "10.244.1.2:8080")
//	out, err = c.Nodes[0].Run(ctx, "crictl", "ps")
//	err = c.Nodes[1].Reboot(ctx)
//
// A cluster is a tree of processes. Its root is the first process of a PID namespace
// and a network namespace of the cluster's own; it supervises the control plane, and
// the nodes. A node is the first process of PID, mount, network, UTS, IPC and cgroup
// namespaces (see package machine), and, where the kernel has them, of a time namespace
// that begins when it does; it supervises containerd, kubelet and kube-proxy.
// When the first process of a node ends, the kernel ends all that runs in the node,
// which is how a node is switched off; and so with the cluster. Until [Cluster.Keep]
// the root holds one end of a pipe whose other end is the starter's: if that ends,
// however it does, everything ends.
//
// The nodes' network cards are veth pairs into a bridge in the cluster's network
// namespace, where the API server listens too. There is no way from there to the
// machine's own network, nor to any other.
//
//	172.30.0.1      fd00:172:30::1         the API server, port 6443, IPv4 only; [Cluster.Dial] connects from here
//	172.30.0.1N     fd00:172:30::1N        node N
//	10.244.N.0/24   fd00:10:244:N::/64     its pods
//	10.96.0.0/16    fd00:10:96::/112       Services
//
// There is IPv6 if the kernel has it.
//
// # Failures it survives
//
//   - The starter is interrupted or killed at any time: no process, mount, namespace
//     or control group is left. Files are: the next start, or [Down], removes them.
//   - The root is killed: [Down] finds and removes what only has a name, control
//     groups and files.
//   - A start that fails leaves the logs, says where they are, and shows the end of the
//     one that tells why.
//   - A build of Kubernetes that is interrupted is not taken for a whole one.
//   - Two who start a cluster in the same directory: the second one is told.
package cluster
