# nearflash: two commands do everything, `make demo` and `make test`.
# `make help` lists the rest. Downloads and builds are kept outside the checkout
# (NEARFLASH_CACHE, default ~/.cache/nearflash) and made again when absent.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Builds are the same in every checkout, so that a new one finds those of the last.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(shell go env GOFLAGS))
LAB := go run ./hack/lab
OUT := _output

##@ Main

.PHONY: demo
demo: ## Boot the lab, run the main job on real devices, print the result table and what is advised.
	CGO_ENABLED=0 go build -o $(OUT)/demo ./hack/demo & $(LAB) up && wait $$!
	$(LAB) run -- $(OUT)/demo
	@echo "The lab is still up: 'go run ./hack/lab status' looks at it, 'make lab-down' ends it."

.PHONY: test
test: test-unit test-kernel ## Run all test rings but kind.
	SMOKE=true UPSTREAM=true hack/cluster-ring.sh

.PHONY: test-full
test-full: test-unit model-deep test-stock-smoke ## Rings 1 to 3 at their longest: a kill at every step, long campaigns, the documents, upstream's suite over the storage server; hours. Not: test-versions, test-stock-kernels, e2e-upstream-csi, e2e-upstream-disruptive, ceph-csi, kind.
	MATRIX=whole $(MAKE) test-unit UNIT="-run '^Test(Kill|Adoption|Backend|Snapshots|Origins|Service)' -timeout 6h ./pkg/attach ./pkg/adopt ./pkg/backend/csi ./pkg/provision"
	MATRIX=whole hack/kernel-ring.sh
	RUN='^TestKernelCampaign$$' DISASTERS=200 LIMIT=3h hack/kernel-ring.sh
	RUN='^TestKernelCampaignOrigin$$' DISASTERS=100 LIMIT=3h hack/kernel-ring.sh
	CEPH_CSI_SRC= LABELS='!bench && !origin-ceph && !ceph-csi && !upgrade-first && !storage-pair && !second-storage && !own-iscsid && !origin-zones' DISASTERS=100 TIMEOUT=8h hack/cluster-ring.sh
	CEPH_CSI_SRC= LABELS='!bench && origin-ceph' hack/cluster-ring.sh
	$(MAKE) test-storage-pair test-second-storage test-own-iscsid test-origin-zones
	hack/upstream-ring.sh

.PHONY: verify
verify: ## Regenerate, lint and check everything that is generated or linted.
	hack/verify/all.sh

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities; asks a database on the network (NEARFLASH_VULNDB).
	hack/vulncheck.sh

##@ Test rings

UNIT := ./... ./hack/...
.PHONY: test-unit
test-unit: ## Ring 1: pure logic, fakes and a real API server; no root needed.
	KUBEBUILDER_ASSETS="$$($(LAB) artifacts --print-dir envtest)" HELM="$$($(LAB) artifacts --print-dir helm)/helm" \
		PROMTOOL="$$($(LAB) artifacts --print-dir prometheus)/promtool" go test -timeout 30m $(UNIT)

.PHONY: model-deep
model-deep: ## The model of the decisions, 30 times as many states as in ring 1; a few minutes.
	go test -tags deep -run '^TestDeep$$' -timeout 2h -v ./e2e/model

.PHONY: test-versions
test-versions: ## Ring 1 with the API servers of the oldest Kubernetes that is supported, and of the newest; and what rests on kube-controller-manager in a lab, with those of both.
	for assets in envtest-oldest envtest-newest; do \
		KUBEBUILDER_ASSETS="$$($(LAB) artifacts --print-dir $$assets)" HELM="$$($(LAB) artifacts --print-dir helm)/helm" \
			PROMTOOL="$$($(LAB) artifacts --print-dir prometheus)/promtool" go test ./... ./hack/... || exit 1; \
	done
	NEARFLASH_CONTROLLER_MANAGERS="$$($(LAB) artifacts --print-dir envtest-oldest)/kube-controller-manager:$$($(LAB) artifacts --print-dir envtest-newest)/kube-controller-manager" \
		LABELS=versions hack/cluster-ring.sh

.PHONY: test-kernel
test-kernel: ## Ring 2: real device-mapper, LVM and iSCSI in one guest.
	hack/kernel-ring.sh

.PHONY: test-arm64
test-arm64: ## What can be tested of arm64 without its kernel: packages and the node image's tools, on an emulated processor.
	hack/arm64-ring.sh

.PHONY: test-million
test-million: ## Caches of a million chunks: moves, deaths of the source, memory; part of no other target.
	VERBOSE=true SHORT=false DISK=49152 MEMORY=4096 LIMIT=60m RUN='^TestKernelMillion$$' hack/kernel-ring.sh

.PHONY: test-stock-smoke
test-stock-smoke: ## The least of ring 2 on the oldest kernel that is supported, unmodified, in an emulated machine.
	KERNEL=debian-12 RUN="$${RUN:-^TestKernel(Targets|OldXFS|SMART|Smoke|IOErrors[A-Za-z]*)$$}" KEEP=$(OUT)/stock-smoke hack/kernel-ring.sh

.PHONY: test-stock-kernels
test-stock-kernels: ## What says most of ring 2, on distributions' kernels (KERNEL, CPUS, RUN choose); most of an hour each.
	hack/stock-ring.sh

.PHONY: test-stock-all
test-stock-all: ## All of ring 2 on distributions' kernels (KERNEL, CPUS choose); hours each.
	RUN=all hack/stock-ring.sh

.PHONY: test-cluster
test-cluster: ## Ring 3: the e2e suite on a two-node lab cluster, without the slow specs.
	LABELS="$${LABELS:-!slow}" hack/cluster-ring.sh

.PHONY: test-upstream
test-upstream: ## A fixed part of Kubernetes' own suite of storage tests, on a two-node lab cluster.
	SUBSET=true hack/upstream-ring.sh

.PHONY: e2e-upstream
e2e-upstream: ## The whole of that suite that the driver selects.
	hack/upstream-ring.sh

.PHONY: e2e-upstream-csi
e2e-upstream-csi: ## The same over volumes of another CSI driver: block devices of a real Ceph (SUBSET=true a fixed part).
	ORIGIN=ceph hack/upstream-ring.sh

.PHONY: e2e-upstream-disruptive
e2e-upstream-disruptive: ## What of that suite stops kubelets or wants a cluster to itself (ORIGIN=ceph as above).
	DISRUPTIVE=true hack/upstream-ring.sh

.PHONY: test-upgrade
test-upgrade: ## From the first commit with this release's data formats to now, back, and to now again, below pods that work (FROM=COMMIT another one).
	hack/upgrade-ring.sh

.PHONY: e2e-docs
e2e-docs: ## The commands of the documents, typed in their order on a two-node lab cluster.
	LABELS=docs hack/cluster-ring.sh

.PHONY: e2e-origin-ceph
e2e-origin-ceph: ## Caches over the block devices of a real Ceph, measured too; LABELS='origin-ceph && !bench' leaves that out. CEPH_CSI_SRC=DIR has ceph-csi itself.
	LABELS="$${LABELS:-$$([[ -n $${CEPH_CSI_SRC:-} ]] && echo ceph-csi || echo origin-ceph)}" hack/cluster-ring.sh

.PHONY: bench-readers
bench-readers: ## What thirty pods cost that load one model, with caches and without; half an hour.
	LABELS='bench && readers' TIMEOUT=2h hack/cluster-ring.sh

.PHONY: test-storage-pair
test-storage-pair: ## Failover of two storage servers with one disk, on a lab of its own.
	LABELS=storage-pair hack/cluster-ring.sh

.PHONY: test-second-storage
test-second-storage: ## Volumes on two storage servers, each of which is off for a while, on a lab of its own.
	LABELS=second-storage hack/cluster-ring.sh

.PHONY: test-origin-zones
test-origin-zones: ## Volumes over disks of two zones, on a lab of its own.
	LABELS=origin-zones hack/cluster-ring.sh

.PHONY: test-own-iscsid
test-own-iscsid: ## Nodes without open-iscsi, for which the chart brings it, and with a root that nobody can write, on a lab of its own.
	OWN_ISCSID=true LABELS='own-iscsid || (smoke && !slow)' hack/cluster-ring.sh

.PHONY: e2e-kind
e2e-kind: ## The e2e suite on kind, on this machine's own kernel: needs root, Docker and dm-cache.
	hack/kind/ring.sh

.PHONY: e2e-kind-guest
e2e-kind-guest: ## The same in a guest of the lab that runs Docker and kind; slow, the specs labelled smoke.
	hack/kind/guest.sh

##@ Lab

.PHONY: lab-up
lab-up: ## Boot the two-node lab with the driver installed.
	$(LAB) up

.PHONY: lab-down
lab-down: ## End everything that lab-up started.
	$(LAB) down

##@ Build

.PHONY: build
build: ## Build all commands into _output/bin.
	mkdir -p $(OUT)/bin
	CGO_ENABLED=0 GOWORK=off go build -o $(OUT)/bin/ ./cmd/...

.PHONY: images
images: ## Build the container images as archives, without a registry.
	$(LAB) artifacts images

.PHONY: images-arm64
images-arm64: ## The same for nodes of arm64; their packages are installed by an emulator.
	$(LAB) artifacts images-arm64

.PHONY: release
release: ## Make everything that a release consists of, in _output/release (VERSION=v1.2.3).
	go run ./hack/release

.PHONY: generate
generate: ## Regenerate deepcopy code, CRDs, protobuf code, snapshots and reference docs.
	hack/generate.sh

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*##/ {printf "  %-24s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
