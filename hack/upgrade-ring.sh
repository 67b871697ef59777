#!/usr/bin/env bash
# The upgrade from the first commit that had data formats of this release, and the way back, on a
# fresh two-node lab: that commit's programs, chart and definitions are built from the repository's
# own history, installed, and upgraded by docs/how-to/upgrade.md below pods that work.
#   FROM     the commit (default: the first whose documents promise upgrades; its journal has format
#            1). Others must have a format below 6: the specs are about going back over it
#   TIMEOUT  limit of the specs (default: 90m)
#   VERBOSE  false prints failures only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
from="${FROM:-36dc317}"
if ! commit="$(git rev-parse --verify --quiet "$from^{commit}")"; then
  echo "commit $from is not in this repository: the ring needs the whole history (git fetch --unshallow)" >&2
  exit 1
fi
tag="${commit:0:12}"
out="$PWD/_output/upgrade-ring"
rm -rf "$out" && mkdir -p "$out"
go build -o "$out/lab" ./hack/lab
go test -tags e2e -c -o "$out/e2e.test" ./e2e
CGO_ENABLED=0 go build -o "$out/kubectl-nearflash" ./cmd/kubectl-nearflash
"$out/lab" artifacts cluster >/dev/null

# A finished build of that commit is kept: nothing of it changes.
kept="${NEARFLASH_CACHE:-$HOME/.cache/nearflash}/upgrade-$tag"
tree="$out/tree"
lab=("$out/lab" --name "upgrade-$(pwd | cksum | cut -d' ' -f1)")
. hack/lab-part.sh
remove_tree() { git worktree remove --force "$tree" 2>/dev/null || true; }
leave() {
  local rc=$?
  remove_tree
  stop "$rc"
}
trap leave EXIT
git worktree prune
git worktree add --quiet --force --detach "$tree" "$commit"
run "${lab[@]}" images of "$tree" --dir "$kept" --tag "$tag"
run env CGO_ENABLED=0 GOWORK=off go build -C "$tree" -o "$kept/bin/" ./cmd/kubectl-nearflash
rm -rf "$kept/chart" && cp -R "$tree/deploy/helm/nearflash" "$kept/chart"
remove_tree

run "${lab[@]}" down
run "${lab[@]}" up --no-driver
run "${lab[@]}" target "$kept/bin/nearflash-target"
run "${lab[@]}" images add "$kept/nearflash-node.tar" "$kept/nearflash-controller.tar"
run "${lab[@]}" images load
(umask 077 && "${lab[@]}" values >"$out/values.json")
# What an operator may have set that today's chart has no more.
gone=(--set target.optional=true --set node.residencyTTL=48h)
run "${lab[@]}" run -- helm install nearflash "$kept/chart" --namespace nearflash --create-namespace \
  --values "$out/values.json" --set "images.node=nearflash.local/nearflash-node:$tag" \
  --set "images.controller=nearflash.local/nearflash-controller:$tag" "${gone[@]}" --wait --timeout 5m

export NEARFLASH_LAB="$out/lab" NEARFLASH_KUBECTL_PLUGIN="$out/kubectl-nearflash" NEARFLASH_UPGRADE_FROM="$kept"
run "${lab[@]}" run -- "$out/e2e.test" -ginkgo.label-filter=upgrade-first -ginkgo.timeout="${TIMEOUT:-90m}" \
  -ginkgo.v="${VERBOSE:-true}" -ginkgo.no-color
