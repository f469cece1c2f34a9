// Package nft keeps a ruleset in a network namespace's table inet fairlead, by netlink: no program is executed, no lock
// is taken.
//
// Apply replaces the table as a whole, in one transaction that the kernel does entirely or not at all; connections and
// conntrack entries do not notice. Check reads it back and compares rules, their order, chains, hooks, and whatever else is in the
// table; it looks at no other table. What of other tables can defeat ours Foreign finds. Generation costs next to nothing, and
// tells whether either could find anything new. The nft command shows the same rules in ordinary syntax.
//
// Of other tables nothing is changed but what istio-cni left, by nft or by iptables-nft: it goes in the transaction by which ours
// redirect in its stead, or in Remove's.
//
// The expressions are google/nftables'; the connection is nlconn's. The library gives up which message a transaction failed at, has
// no call for the ruleset's number, and takes what any process in the pod's namespace sends to the socket for the kernel's word.
//
// # Failures it survives
//
//   - A socket in another namespace than meant (a closed handle, a number used again): nothing is written.
//   - Kernels without a feature: the error names the rule or chain, and the module.
//   - Anything at all in a table of our name: sets, chains without a hook, rules that we never write, the flag dormant. Check
//     reports it, Apply replaces it.
//   - A chain of the app's that stands before ours, or keeps packets from connection tracking: Foreign names it, in a form that
//     is fit to print. What an app does by iptables as usual comes behind ours, and is not named.
//   - Something that istio-cni left and that cannot be deleted: ours is put in place, or removed, even so. Foreign names it, and the
//     rules by which istio-cni keeps a pod without a network while it works.
//   - A process in the pod that changes the ruleset in a loop: three attempts and 50 ms, then the table counts as drifted. Or
//     that fills the table, or others, with a million rules: reading is cut short, and says so.
//   - A process in the pod that sends to our socket: the kernel refuses it.
package nft
