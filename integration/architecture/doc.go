// Package architecture holds the shape of the code: which package may reach which,
// and which call may stand where. Each ban stands in bans_test.go with its reason.
//
// # Failures it survives
//
//   - A ban that a slip has made vacuous: each one is shown to fail on a graph that
//     breaks it, and each package it names has to exist or stand in the list of those
//     to come.
//   - A dependency that comes in through a third package: the whole way is printed.
package architecture
