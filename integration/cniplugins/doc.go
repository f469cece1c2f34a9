// Package cniplugins is empty: its module pins the reference CNI plugins that the
// demo and the tests chain ours behind. `make demo` builds them into bin/cni, so
// that no package of the distribution is needed. They are a module of their own
// because they bring modules that nothing of ours should reach.
package cniplugins
