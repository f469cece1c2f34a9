// Package ruleset turns a pod's redirection config into the rules of its table, as values: they can be printed, compared,
// traced and tested without a kernel. It touches no operating system.
//
// The rules are for one table of family inet, so that IPv4 and IPv6 change in the same transaction, and base chains alone:
// nothing jumps, so nothing is left over when a chain is replaced. Build says which rules there are and why; every rule
// carries its reason as a comment that an operator sees in `nft list ruleset`. The constants that the rules share with
// routing, listeners and sockets are here as well, and nowhere else.
//
// # Failures it survives
//
//   - Names from a pod's annotations: what cannot be an interface's name, or would match another than it says, is refused
//     with the name and the reason. No name can add a line to the text.
//   - Rules that somebody else put into the table: they are shown, with whatever could steer a terminal taken out, and an
//     operator gets twenty lines of difference, not a thousand.
//   - Rules in another order: the order decides what is captured, and is compared.
package ruleset
