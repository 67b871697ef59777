#!/usr/bin/env bash
# Regenerates what is generated: deepcopy code, CRDs and their reference, protocol
# buffer code, the chart's snapshots, its README and the reference of its values.
#
#   hack/generate.sh           renew the files
#   hack/generate.sh --check   print how they differ, change nothing, fail if they do
#
# Needs only Go and the module proxy, and helm (from HELM; else the lab's own).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CONTROLLER_GEN=sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0
CHART=deploy/helm/nearflash

mode=${1:-write}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

go run "$CONTROLLER_GEN" object paths=./api/v1alpha1 output:object:dir="$out/api/v1alpha1"
go run "$CONTROLLER_GEN" crd paths=./api/v1alpha1 output:crd:dir="$out/$CHART/crds"
mkdir -p "$out/docs/reference"
go run ./hack/crddoc "$out/$CHART/crds" >"$out/docs/reference/crds.md"

mapfile -t protos < <(find pkg -name '*.proto' | sort)
GOWORK=off go -C hack/tools/proto run . --root "$PWD" --out "$out" "${protos[@]}"

# Snapshots are what helm renders from the templates in the tree.
HELM=${HELM:-$(go run ./hack/lab artifacts --print-dir helm)/helm}
export HELM
mkdir -p "$out/$CHART/tests/snapshots"
SNAPSHOTS_OUT="$out/$CHART/tests/snapshots" go test -count=1 -run '^TestSnapshots$' "./$CHART/tests" >"$out/log" || { cat "$out/log" >&2; exit 1; }
rm "$out/log"

go run ./hack/valuesdoc "$CHART" >"$out/docs/reference/helm-values.md"
go run ./hack/valuesdoc -readme "$CHART" >"$out/$CHART/README.md"
go run ./hack/kubectldoc >"$out/docs/reference/kubectl.md"
go run ./hack/metricsdoc >"$out/docs/reference/metrics.md"

status=0
while IFS= read -r file; do
  if [[ $mode == --check ]]; then
    diff -u --label "$file" --label "$file (generated)" "$file" "$out/$file" || status=1
  else
    mkdir -p "$(dirname "$file")"
    cp "$out/$file" "$file"
  fi
done < <(cd "$out" && find . -type f -printf '%P\n' | sort)
exit $status
