// Package redirect holds no code but tests: the rules of iptables/ruleset, put into the kernel by iptables/nft and completed by
// iptables/route and iptables/conntrack, move real packets between real network namespaces.
//
// The tests are tables that can be read beside what proxies rely on: who opens a connection to where, and who answers,
// sees which address, and is told which destination. What stands in for the node proxy is a listener with the proxy's mark.
//
// # Failures it survives
//
// The tests provoke, each for IPv4 and IPv6, and would notice:
//   - a rule that is missing, in the wrong order, or that the kernel understands in another way than package ruleset's
//     tracer does;
//   - a connection that is captured twice, an answer that leaves the pod instead of going back to the proxy;
//   - a connection that goes on in the clear because its conntrack entry was lost, was older than the rules, or was kept
//     from being made by the app.
package redirect
