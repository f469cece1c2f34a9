# Fairlead. `make` lists what there is.

# The version is the commit's, so that the same commit gives the same bytes.
VERSION := $(shell git -c safe.directory='*' describe --tags --always --abbrev=12 --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 10s

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Where Go and the system's tools are when the caller's PATH does not say so.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
# The version is stamped here; Go's own look at the repository fails where somebody else owns the checkout.
export GOFLAGS := $(strip $(shell go env GOFLAGS 2>/dev/null) -buildvcs=false)

STATIC := CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binaries into bin/: fairlead, fairlead-cni, nodeproxy
	@$(STATIC) -o bin/ ./nodeagent/cmd/fairlead ./cni/cmd/fairlead-cni ./integration/cmd/nodeproxy

# The images' names are $(IMAGES)/fairlead:$(VERSION) and $(IMAGES)/nodeproxy:$(VERSION).
IMAGES ?= localhost/fairlead-mesh

.PHONY: image
image: build ## write the container images bin/fairlead.tar and bin/nodeproxy.tar, as the Dockerfile says, without a builder
	@integration/make/packages image
	@for target in fairlead nodeproxy; do \
		go run ./integration/cmd/image -target $$target -name '$(IMAGES)'/$$target:'$(VERSION)' -arg VERSION='$(VERSION)' -o bin/$$target.tar; \
	done

.PHONY: demo
demo: root build demo-parts ## capture pods for real in private namespaces, step by step (root)
	@bin/demo

# Said before anything is built: without root's home Go may have no place for its cache.
.PHONY: root
root:
	@[ "$$(id -u)" = 0 ] || { echo 'make $(MAKECMDGOALS): it has to run as root, in network, mount and PID namespaces of its own; try: sudo make $(MAKECMDGOALS)' >&2; exit 1; }

# The demo itself, and the reference CNI plugins it chains with ours.
.PHONY: demo-parts
demo-parts:
	@$(STATIC) -o bin/ ./integration/cmd/demo
	@cd integration/cniplugins && $(STATIC) -o ../../bin/cni/ tool

.PHONY: test
test: ## run every test with the race detector, the kernel's too (root); installs missing Debian packages
	@[ "$$(id -u)" = 0 ] || echo 'make test: not root: the kernel tests will be left out' >&2
	@integration/make/packages
	@$(MAKE) build demo-parts
	@integration/make/test

# SEQUENCES and SEED repeat a run, SEQUENCE one sequence of it.
.PHONY: sequences
sequences: SEQUENCES ?= 300
sequences: root ## do everything to pods in every state, at random, and kill the agent meanwhile (root); installs as test does
	@integration/make/packages
	@CGO_ENABLED=1 FAIRLEAD_SEQUENCES=$(SEQUENCES) FAIRLEAD_SEED=$(SEED) FAIRLEAD_SEQUENCE=$(SEQUENCE) \
		go test -race -count=1 -timeout 30m -v -run '^(TestEveryStateFromEveryState|TestChurn)$$' ./nodeagent/enroll

.PHONY: lint
lint: ## check style, generated code and the modules' tidiness
	@integration/make/lint

.PHONY: e2e
e2e: root image cluster-command cluster-helm ## run the end-to-end tests on a real Kubernetes cluster made of namespaces (root)
	@integration/make/packages cluster
	@bin/cluster build
	@cd integration/cluster && go test -tags e2e -count=1 -p 1 -timeout 60m $(if $(RUN),-run '$(RUN)') -v ./e2e/...

.PHONY: cluster-command
cluster-command:
	@cd integration/cluster && $(STATIC) -o ../../bin/ ./cmd/cluster
	@ln -sf cluster bin/kubectl

# Where bin/cluster looks for it.
.PHONY: cluster-helm
cluster-helm: cluster-command ## build bin/helm, which runs Helm in the cluster (5 minutes, once)
	@cd charts/tests && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o ../../bin/tools/ tool
	@ln -sf cluster bin/helm

# NODES is how many nodes the cluster gets: 1, or more.
.PHONY: cluster-up
cluster-up: root cluster-command ## start a real Kubernetes cluster made of namespaces; NODES=2 for two nodes (root)
	@integration/make/packages cluster
	@bin/cluster up $(if $(NODES),-nodes '$(NODES)')

.PHONY: cluster-status
cluster-status: cluster-command ## show what runs of the cluster
	@bin/cluster status

.PHONY: cluster-down
cluster-down: root cluster-command ## end the cluster; nothing is left of it (root)
	@bin/cluster down

# BENCH chooses rows (a regexp; '^[^c]' spares the cluster), BENCH_JSON names a file for machines.
.PHONY: bench
bench: root build demo-parts ## measure the budgets, met or missed (root); CHECK=1 fails on a miss; installs as test does
	@integration/make/packages
	@$(STATIC) -o bin/ ./integration/cmd/bench
	@! bin/bench $(if $(BENCH),-rows '$(BENCH)') -list | grep ^cluster- >/dev/null || $(MAKE) bench-cluster
	@bin/bench $(if $(BENCH),-rows '$(BENCH)') $(if $(BENCH_JSON),-json '$(BENCH_JSON)') $(if $(CHECK),-check)

.PHONY: bench-cluster
bench-cluster: root image cluster-command cluster-helm
	@integration/make/packages cluster
	@bin/cluster build
	@cd integration/cluster && $(STATIC) -o ../../bin/ ./cmd/clusterbench

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (10s) each
	@FUZZTIME=$(FUZZTIME) integration/make/fuzz

.PHONY: generate
generate: ## write the generated code anew
	@cd integration/tools && go run ./protogen -root ../.. -out ../.. ztunnelproto/zds.proto

.PHONY: clean
clean: ## remove bin/, and nothing else
	rm -rf bin
