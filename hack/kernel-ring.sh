#!/usr/bin/env bash
# Ring 2: tests with build tag "kernel", run as root on real device-mapper, LVM
# and iSCSI: each package in a throw-away guest of its own, all at the same time.
# RUN limits them to names that match.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/_output/kernel-ring
rm -rf "$out" && mkdir -p "$out"

mapfile -t packages < <(grep -rl --include='*_test.go' '^//go:build kernel' pkg e2e | xargs -n1 dirname | sort -u)
((${#packages[@]})) || { echo "no package has kernel tests" >&2; exit 1; }
go build -o "$out/lab" ./hack/lab
"$out/lab" artifacts kernel > /dev/null
for p in "${packages[@]}"; do
  echo "build $p"
  dir="$out/${p//\//_}"
  mkdir "$dir"
  CGO_ENABLED=0 go test -c -tags kernel,faultpoints -o "$dir/kernel.test" "./$p"
  cp hack/kernel-ring-guest.sh "$dir/guest.sh"
done

pids=()
finish() {
  local rc=$?
  trap - EXIT INT TERM
  # The lab program ends its guest when it is told to end.
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  exit "$rc"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for p in "${packages[@]}"; do
  dir="$out/${p//\//_}"
  "$out/lab" guest run --timeout 30m --env "RUN=${RUN:-^TestKernel}" "$dir" > "$dir/log" 2>&1 &
  pids+=($!)
done
failed=0
for i in "${!packages[@]}"; do
  rc=0
  wait "${pids[i]}" || rc=$?
  dir="$out/${packages[i]//\//_}"
  echo "== ${packages[i]}: exit status $rc"
  cat "$dir/log"
  ((rc == 0)) || failed=1
done
pids=()
exit "$failed"
