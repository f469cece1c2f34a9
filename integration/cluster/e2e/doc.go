// Package e2e holds the tests that need a real cluster. They have the build tag e2e
// and are run by "make e2e", in namespaces of their own (see package netlab).
//
// # Failures it survives
//
//   - A test run is killed: its clusters end with it, and what only has a name is
//     removed by the next run.
package e2e
