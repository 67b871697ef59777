#!/usr/bin/env bash
# Ring 3: the Ginkgo suite on fresh two-node labs. Specs wait most of the time, so
# that two labs share them: each spec runs in one of the two. The labs are ended by
# their own ids in every case; a failed part keeps and prints its logs.
#   LABELS   label filter of the specs (default: !slow, and of those labelled turn-1, turn-2 and
#            turn-3 one third: the commit decides which)
#   TIMEOUT  limit of one part (default: 60m)
#   VERBOSE  false prints failures only
#   CEPH_CSI_SRC the folder of ceph-csi's source, for specs labelled ceph-csi
#   OWN_ISCSID true gives the labs nodes without an iscsid, so that the chart brings one, and with a
#            root that nobody can write
#   UPSTREAM true also runs the smaller fixed part of Kubernetes' own storage tests, in the lab
#            whose specs end first
#   SMOKE    true also runs one half of the smoke of ring 2 on a distribution's kernel, beside the
#            labs, which wait for more than a quarter of their time
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=_output/cluster-ring
rm -rf "$out" && mkdir -p "$out"
commit="$({ git rev-parse HEAD 2>/dev/null || true; } | cksum | cut -d' ' -f1)"
labels="${LABELS:-!slow && !(/^turn-/ && !turn-$((commit % 3 + 1)))}"
# The parts take about the same time.
heavy='faults || crash || lost || migrate || storage || warm || change || origin'
parts=("$heavy" "!($heavy)")
checkout="$(pwd | cksum | cut -d' ' -f1)"

builds=()
build() { "$@" & builds+=($!); }
build go build -o "$out/lab" ./hack/lab
build go test -tags e2e -c -o "$out/e2e.test" ./e2e
build env CGO_ENABLED=0 go build -o "$out/kubectl-nearflash" ./cmd/kubectl-nearflash
build env CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$out/checker-agent" ./e2e/checker/agent
if [[ ${UPSTREAM:-} == true ]]; then
  mkdir "$out/upstream"
  build go build -o "$out/upstream/ginkgo" github.com/onsi/ginkgo/v2/ginkgo
fi
for pid in "${builds[@]}"; do wait "$pid"; done
# selected FILTER [N]: whether any spec matches; part N asks it in its own shell.
selected() {
  local list="$out/selection${2:-}"
  "$out/e2e.test" -ginkgo.dry-run -ginkgo.no-color -ginkgo.label-filter="$1" >"$list" 2>&1 || { cat "$list"; exit 1; }
  ! grep -q '^Ran 0 of ' "$list"
}

if selected '/^turn-/ && !(turn-1 || turn-2 || turn-3)'; then
  echo "a spec has a label turn-N that no commit runs: accepted are turn-1, turn-2 and turn-3"
  exit 1
fi
export NEARFLASH_KUBECTL_PLUGIN="$PWD/$out/kubectl-nearflash"
export NEARFLASH_CHECKER_AGENT="$PWD/$out/checker-agent"
"$out/lab" artifacts cluster
origin=""
if selected "($labels) && origin"; then origin=pd; fi
of_ceph=origin-ceph
if [[ -n ${CEPH_CSI_SRC:-} ]]; then of_ceph=ceph-csi; fi
for other in origin-ceph ceph-csi; do
  if [[ $other != "$of_ceph" ]] && selected "($labels) && $other"; then
    echo "the filter $labels selects specs labelled $other: those of ceph-csi need its source (CEPH_CSI_SRC), and the others need a lab without it"
    exit 1
  fi
done
if selected "($labels) && $of_ceph"; then
  if [[ -n $origin ]]; then
    echo "the filter $labels selects specs of two origins (origin, $of_ceph), and a lab has one: run them apart"
    exit 1
  fi
  origin=ceph
fi
# Other specs of that driver move volumes between nodes, in one zone.
zones=""
if selected "($labels) && origin-zones"; then
  if [[ -n $origin ]]; then
    echo "the filter $labels selects specs labelled origin-zones, and others of an origin: run them apart"
    exit 1
  fi
  origin=pd zones=node-b=us-lab1-b
fi
if [[ -n $origin ]]; then "$out/lab" artifacts "$origin"; fi
NEARFLASH_PROMETHEUS="$("$out/lab" artifacts --print-dir prometheus)/prometheus"
export NEARFLASH_PROMETHEUS
if selected "($labels) && database"; then
  NEARFLASH_DATABASE_IMAGE="$("$out/lab" artifacts --print-dir database)/database.tar"
  export NEARFLASH_DATABASE_IMAGE
fi
if selected "($labels) && dashboard"; then
  GOWORK=off GOFLAGS=-mod=mod go build -C hack/tools/plot -o "$PWD/$out/plot" .
  export NEARFLASH_PLOT="$PWD/$out/plot" NEARFLASH_DASHBOARD="$PWD/$out/dashboard.svg"
fi
if [[ ${UPSTREAM:-} == true ]]; then
  upstream_tests="$("$out/lab" artifacts --print-dir upstream)"
fi

# part N FILTER: a lab, the specs, the end of the lab. It runs in a shell of its
# own; nothing is local, because a trap outlives the function.
part() {
  lab=("$out/lab" --name "ring-$checkout-$1")
  filter="$2"
  . hack/lab-part.sh
  # What a run has left that was ended with its machine.
  run "${lab[@]}" down
  up=(up)
  if [[ -n $origin ]] && selected "($filter) && (origin || origin-zones || $of_ceph)" "$1"; then up+=(--origin "$origin"); fi
  if [[ -n $zones ]]; then up+=(--origin-zones "$zones"); fi
  # Other specs count on a server that comes back by itself.
  if ! selected "($labels) && !storage-pair" "$1"; then up+=(--storage-pair); fi
  if ! selected "($labels) && !second-storage" "$1"; then up+=(--second-storage); fi
  if [[ ${OWN_ISCSID:-} == true ]]; then up+=(--without-iscsid --read-only-root); fi
  run "${lab[@]}" "${up[@]}"
  export NEARFLASH_LAB="$PWD/$out/lab"
  run "${lab[@]}" run -- "$out/e2e.test" -ginkgo.label-filter="$filter" \
    -ginkgo.timeout="${TIMEOUT:-60m}" -ginkgo.v="${VERBOSE:-true}" -ginkgo.no-color
  if [[ ${UPSTREAM:-} == true ]] && mkdir "$out/upstream/taken" 2>/dev/null; then
    . hack/upstream-tests.sh
    SUBSET=small ORIGIN='' DISRUPTIVE='' LABELS='' FOCUS='' TIMEOUT=30m upstream "$PWD/$out/upstream" "$upstream_tests"
  fi
}

pids=() printers=()
end() {
  trap '' INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  [[ ! -f $out/smoke.log ]] || cat "$out/smoke.log"
  exit "$1"
}
trap 'end 130' INT
trap 'end 143' TERM
for i in "${!parts[@]}"; do
  filter="($labels) && (${parts[$i]})"
  if selected "$filter"; then
    mkfifo "$out/$i.pipe"
    sed -u "s/^/[$i] /w $out/$i.log" <"$out/$i.pipe" &
    printers+=($!)
    (part "$i" "$filter") >"$out/$i.pipe" 2>&1 &
    pids+=($!)
  fi
done
if ((${#pids[@]} == 0)); then
  echo "no spec matches the label filter $labels"
  exit 1
fi
if [[ ${SMOKE:-} == true ]]; then
  # One half of it, by the commit.
  smoke=('Targets|OldXFS|SMART|Smoke' 'Targets|IOErrors[A-Za-z]*|IOSizes|IOAreas')
  RUN="^TestKernel(${smoke[commit % 2]})\$" make --no-print-directory test-stock-smoke >"$out/smoke.log" 2>&1 &
  pids+=($!)
fi
rc=0
for pid in "${pids[@]}"; do wait "$pid" || rc=1; done
wait "${printers[@]}"
[[ ! -f $out/smoke.log ]] || cat "$out/smoke.log"
if ((rc != 0)); then
  # What failed comes last, because two labs' logs lie between it and its cause.
  echo "failed:"
  # The lines below one that failed have the reason.
  grep -hE --no-group-separator -A 4 '^\[[0-9]\] (  *\[[A-Z]+\] |error: )' "$out"/*.log | tail -40 | cut -c1-300 || true
  grep -hE -A 4 '^== .* exit status [1-9]|^--- FAIL' "$out"/smoke.log 2>/dev/null | cut -c1-300 || true
  grep -hE '^\[[0-9]\] Ran [0-9]+ of ' "$out"/*.log || true
fi
exit "$rc"
