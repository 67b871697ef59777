#!/usr/bin/env bash
# Kubernetes' own suite of storage tests against the driver in a fresh lab. The lab
# is ended by its own ids in every case; of a failed run its logs are printed. What
# chooses the tests is in hack/upstream-tests.sh.
#   ORIGIN   ceph runs them over volumes of that CSI driver (default: of nearflash-target)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# With the number behind it a lab's name has 32 characters at most.
name="upstream${ORIGIN:+-$ORIGIN}${DISRUPTIVE:+-serial}"
out="$PWD/_output/$name"
rm -rf "$out" && mkdir -p "$out"
go build -o "$out/lab" ./hack/lab
go build -o "$out/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
tests="$("$out/lab" artifacts --print-dir upstream)"
lab=("$out/lab" --name "$name-$(pwd | cksum | cut -d' ' -f1)")
. hack/lab-part.sh
. hack/upstream-tests.sh
# What a run has left that was ended with its machine.
run "${lab[@]}" down
run "${lab[@]}" up ${ORIGIN:+--origin "$ORIGIN"}
upstream "$out" "$tests"
