#!/usr/bin/env bash
# Ring 2: tests with build tag "kernel", run as root inside one guest, on real
# device-mapper, LVM and iSCSI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/_output/kernel-ring
rm -rf "$out" && mkdir -p "$out"

mapfile -t packages < <(grep -rl --include='*_test.go' '^//go:build kernel' pkg | xargs -n1 dirname | sort -u)
((${#packages[@]})) || { echo "no package has kernel tests" >&2; exit 1; }
for p in "${packages[@]}"; do
  CGO_ENABLED=0 go test -c -tags kernel -o "$out/${p//\//_}.test" "./$p"
done
cp hack/kernel-ring-guest.sh "$out/run.sh"
go run ./hack/lab guest run "$out"
