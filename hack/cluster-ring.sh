#!/usr/bin/env bash
# Ring 3: the Ginkgo suite on a fresh two-node lab. The lab is ended by its own
# ids in every case; a failed run keeps and prints its logs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=_output/cluster-ring
rm -rf "$out" && mkdir -p "$out"

go build -o "$out/lab" ./hack/lab
lab="$out/lab"
finish() {
  local rc=$?
  trap - EXIT INT TERM
  if ((rc != 0)); then "$lab" logs --tail 80 || true; fi
  "$lab" down || rc=1
  exit "$rc"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

go test -tags e2e -c -o "$out/e2e.test" ./e2e
"$lab" up
NEARFLASH_LAB="$PWD/$lab" "$lab" run -- "$out/e2e.test" \
  -ginkgo.label-filter="${LABELS:-!slow}" -ginkgo.timeout="${TIMEOUT:-40m}" -ginkgo.v="${VERBOSE:-true}" -ginkgo.no-color
