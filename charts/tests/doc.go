// Package charts tests the Helm charts beside it, by Helm's own engine, and their admission
// policies by the API server's.
//
// # Failures it survives
//
//   - A field of the agent's configuration that the charts have not heard of: a test names
//     it.
//   - A change of what is rendered that nobody meant: it is compared with the files in
//     testdata, which go test -update writes anew.
package charts
