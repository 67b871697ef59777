#!/usr/bin/env bash
# Ring 2: tests with build tag "kernel", run as root on real device-mapper, LVM
# and iSCSI: each package in a throw-away guest of its own, all at the same time.
# RUN limits them to names that match; SHORT=false runs the longest benchmarks too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/_output/kernel-ring
rm -rf "$out" && mkdir -p "$out"

mapfile -t packages < <(grep -rl --include='*_test.go' '^//go:build kernel' pkg e2e | xargs -n1 dirname | sort -u)
((${#packages[@]})) || { echo "no package has kernel tests" >&2; exit 1; }
go build -o "$out/lab" ./hack/lab
"$out/lab" artifacts kernel > /dev/null
# One job a guest: package, tests to run, tests to skip.
jobs=()
for p in "${packages[@]}"; do
  if [[ -n ${RUN:-} ]]; then
    jobs+=("$p $RUN ^\$")
    continue
  fi
  mapfile -t long < <(sed -n 's/^func \(TestKernelKill[A-Za-z]*\)(t .*/\1/p' "$p"/*_test.go)
  for t in "${long[@]}"; do jobs+=("$p ^$t\$ ^\$"); done
  jobs+=("$p ^TestKernel $( ((${#long[@]})) && echo '^TestKernelKill' || echo '^$')")
done
for i in "${!jobs[@]}"; do
  read -r p _ <<<"${jobs[i]}"
  mkdir "$out/$i"
  if [[ ! -f $out/${p//\//_}.test ]]; then
    echo "build $p"
    CGO_ENABLED=0 go test -c -tags kernel,faultpoints -o "$out/${p//\//_}.test" "./$p"
  fi
  ln "$out/${p//\//_}.test" "$out/$i/kernel.test"
  cp hack/kernel-ring-guest.sh "$out/$i/guest.sh"
done

# In memory, when there is room, the disks of the guests need not wait for the
# machine's own disk at every flush.
room=$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -1 || echo 0)
((room < 8)) || export TMPDIR=/dev/shm

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

for i in "${!jobs[@]}"; do
  read -r _ run skip <<<"${jobs[i]}"
  "$out/lab" guest run --timeout 30m --env "RUN=$run" --env "SKIP=$skip" --env "SHORT=${SHORT:-true}" "$out/$i" > "$out/$i/log" 2>&1 &
  pids+=($!)
done
failed=0
for i in "${!jobs[@]}"; do
  rc=0
  wait "${pids[i]}" || rc=$?
  echo "== ${jobs[i]}: exit status $rc"
  cat "$out/$i/log"
  ((rc == 0)) || failed=1
done
pids=()
exit "$failed"
