#!/usr/bin/env bash
# Ring 2: tests with build tag "kernel", run as root inside one throw-away guest,
# on real device-mapper, LVM and iSCSI. RUN limits them to names that match.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/_output/kernel-ring
rm -rf "$out" && mkdir -p "$out"

mapfile -t packages < <(grep -rl --include='*_test.go' '^//go:build kernel' pkg e2e | xargs -n1 dirname | sort -u)
((${#packages[@]})) || { echo "no package has kernel tests" >&2; exit 1; }
for p in "${packages[@]}"; do
  echo "== build $p"
  CGO_ENABLED=0 go test -c -tags kernel,faultpoints -o "$out/${p//\//_}.test" "./$p"
done
cp hack/kernel-ring-guest.sh "$out/guest.sh"
go run ./hack/lab guest run --timeout 30m --env "RUN=${RUN:-^TestKernel}" "$out"
