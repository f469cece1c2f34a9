module github.com/fairlead-mesh/fairlead/integration/cluster

go 1.26.8

require (
	github.com/fairlead-mesh/fairlead v0.0.0
	github.com/google/go-cmp v0.7.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sync v0.25.0
	golang.org/x/sys v0.50.0
)

require github.com/vishvananda/netns v0.0.5 // indirect

replace github.com/fairlead-mesh/fairlead => ../..
