#!/usr/bin/env bash
# The gate: everything that is checked without running the tests. It changes
# nothing in the tree. Needs Go, the module proxy and helm (HELM; else the lab's).
#
#   hack/verify/all.sh               all checks
#   hack/verify/all.sh lint links    only these
#
# NEARFLASH_VERIFY_PACKAGES limits vet and lint to some packages, default all of both
# modules.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Packages as words; patterns of Go have no blanks.
read -ra PACKAGES <<<"${NEARFLASH_VERIFY_PACKAGES:-./... ./hack/...}"
TOOLS=${NEARFLASH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nearflash}/tools
# Tags under which more code is built; each check of code runs without and with them.
TAGS=kernel,faultpoints

# tree lists the project's files whose names match a pattern of find.
tree() {
  find . \( -name .git -o -path ./_output -o -path ./bin \) -prune -o -type f "$@" -print | sed 's|^\./||' | sort
}

check_format() {
  local bad
  bad=$(tree -name '*.go' | xargs -d '\n' gofmt -s -l) || return 1
  [[ -z $bad ]] || { echo "$bad"; return 1; }
}

check_vet() {
  go vet "${PACKAGES[@]}" && go vet -tags "$TAGS" "${PACKAGES[@]}"
}

# What runs on nodes, storage servers and control planes is released for arm64 too.
check_arm64() {
  GOARCH=arm64 CGO_ENABLED=0 GOWORK=off go vet ./cmd/... ./pkg/...
}

# The plugin of kubectl is released for the systems of those who type it, too.
check_plugin() {
  local on
  for on in darwin/arm64 windows/amd64; do
    GOOS=${on%/*} GOARCH=${on#*/} CGO_ENABLED=0 GOWORK=off go vet ./cmd/kubectl-nearflash || { echo "on $on"; return 1; }
  done
}

check_lint() {
  local lint=$TOOLS/lint found rc=0
  # The same binary for every commit: its cache is keyed by its content.
  GOWORK=off go build -C hack/tools/lint -trimpath -buildvcs=false -o "$lint" . || return 1
  # Without package comments in every package (ST1000), and with comments of
  # variables that speak of a group (ST1022). Most findings come twice.
  found=$("$lint" -checks all,-ST1000,-ST1022 "${PACKAGES[@]}" 2>&1) || rc=1
  found+=$'\n'$("$lint" -checks all,-ST1000,-ST1022 -tags "$TAGS" "${PACKAGES[@]}" 2>&1) || rc=1
  sort -u <<<"$found" | sed '/^$/d'
  return $rc
}

# The tools are modules of their own, which neither pattern reaches nor go.work joins.
check_tools() {
  local dir
  for dir in hack/tools/lint hack/tools/proto hack/tools/plot; do
    (cd "$dir" && export GOWORK=off && go vet ./... && go test ./...) || return 1
  done
  # With the flags of its artifact: what it needs of Kubernetes and of a cloud is then
  # compiled once.
  (cd hack/tools/pd && CGO_ENABLED=0 GOWORK=off GOFLAGS='-trimpath -buildvcs=false -gcflags=all=-dwarf=false' go test ./...)
}

check_tidy() {
  local dir rc=0
  for dir in . hack hack/tools/lint hack/tools/proto hack/tools/plot hack/tools/vuln hack/tools/pd; do
    (cd "$dir" && go mod tidy -diff 2>&1 | grep -v '^go: downloading'; exit "${PIPESTATUS[0]}") || { echo "in $dir"; rc=1; }
  done
  return $rc
}

# What is built and tested here is joined by go.work, which takes the higher version and
# the replacements of both modules. The driver is released from its own go.mod alone: that
# has to be the same.
check_workspace() {
  local dir alone rc=0
  for dir in . hack; do
    alone=$(cd "$dir" && export GOWORK=off && used) && [[ -n $alone ]] || return 1
    diff <(echo "$alone") <(cd "$dir" && used) || { echo "in $dir: < is its go.mod alone, > what go.work makes of it"; rc=1; }
  done
  return $rc
}

# used lists the modules that packages and tests of the current one are built from.
used() {
  go list -deps -test -tags "$TAGS,e2e" -f '{{with .Module}}{{.}}{{end}}' ./... | grep -v '^github.com/nearflash/nearflash' | sort -u
}

check_generated() {
  hack/generate.sh --check
}

check_links() {
  tree -name '*.md' | xargs -d '\n' go run ./hack/verify/doclinks
}

# Each of the kept values has to pass helm's own linter, and the chart has to pack.
check_chart() {
  local helm chart=deploy/helm/nearflash values out rc=0
  helm=${HELM:-$(go run ./hack/lab artifacts --print-dir helm)/helm} || return 1
  "$helm" lint --strict --quiet "$chart" || rc=1
  for values in static production monitoring origins; do
    "$helm" lint --strict --quiet "$chart" --values "$chart/tests/values/$values.yaml" || { echo "with values $values"; rc=1; }
  done
  out=$(mktemp -d)
  "$helm" package "$chart" --destination "$out" && [[ -s $(echo "$out"/nearflash-*.tgz) ]] || { echo "not packed"; rc=1; }
  rm -r "$out"
  return $rc
}

check_shell() {
  local file rc=0
  while IFS= read -r file; do
    [[ $file == *.sh || $(head -c 64 "$file" | tr -d '\0' | head -n 1) =~ ^#!.*[/\ ]bash ]] || continue
    bash -n "$file" || rc=1
    [[ -x $file || $(head -c 2 "$file") != '#!' ]] || { echo "$file: has #! and is not executable"; rc=1; }
  done < <(tree ! -name '*.go')
  return $rc
}

# What belongs to one machine or one person. The folder names are put together
# here, so that this file does not contain them.
check_paths() {
  local r=root u=Users h=home
  if tree ! -path './hack/verify/all.sh' | xargs -d '\n' grep -InE "(^|[^A-Za-z0-9_./])/($r|$u|$h/[a-z])[A-Za-z0-9._-]*/" --; then
    return 1
  fi
}

# Directives of a linter that does not run are words without effect.
check_directives() {
  if tree -name '*.go' ! -path './hack/tools/lint/house/testdata/*' | xargs -d '\n' grep -nE '//[n]olint' --; then
    return 1
  fi
}

# A newcomer finds each package on the map, and no other.
check_map() {
  local known there
  known=$(awk '/^## The map/ { on = 1; next } /^## / { on = 0 } on && /^\|/' CONTRIBUTING.md | grep -oE '`(pkg|e2e|hack)/[a-z/0-9]+`' | tr -d '\`' | cut -d/ -f1,2 | sort -u)
  there=$(for dir in pkg/*/ e2e/*/ hack/*/; do echo "${dir%/}"; done | sort -u)
  diff <(echo "$known") <(echo "$there")
}

remedy() {
  case $1 in
    format) echo "run: gofmt -s -w FILES" ;;
    vet) echo "correct the code that go vet names" ;;
    arm64) echo "take what differs between architectures from golang.org/x/sys/unix" ;;
    plugin) echo "move what only Linux has to a file of its own, or out of what the plugin imports" ;;
    lint) echo "correct the code; if it is right as it is, put //lint:ignore CHECK REASON before the line" ;;
    tools) echo "correct the tool below hack/tools that is named" ;;
    tidy) echo "run in the folder that is named: go mod tidy" ;;
    workspace) echo "require the same versions in go.mod and hack/go.mod" ;;
    generated) echo "run: make generate, and review the difference" ;;
    chart) echo "correct the template, value or file of the chart that helm names" ;;
    links) echo "correct the link, or the heading that it points to" ;;
    shell) echo "correct the script" ;;
    paths) echo "take the path from the environment or a parameter" ;;
    map) echo "name the package (>) in CONTRIBUTING.md's map, or take the one out that is gone (<)" ;;
    directives) echo "write //lint:ignore CHECK REASON for a finding of hack/tools/lint, else delete the comment" ;;
  esac
}

all=(format shell paths directives map links chart vet arm64 plugin lint tools tidy workspace generated)
selected=("$@")
((${#selected[@]})) || selected=("${all[@]}")
for name in "${selected[@]}"; do
  [[ " ${all[*]} " == *" $name "* ]] || { echo "no check $name; there are: ${all[*]}" >&2; exit 2; }
done

mkdir -p "$TOOLS"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=()
for name in "${selected[@]}"; do
  started=$EPOCHREALTIME
  "check_$name" >"$output" 2>&1
  rc=$?
  took=$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  if ((rc == 0)); then
    printf 'ok    %-10s %6s s\n' "$name" "$took"
  else
    printf 'FAIL  %-10s %6s s\n' "$name" "$took"
    sed -e 's/^/      /' -e '80q' "$output"
    lines=$(wc -l <"$output")
    ((lines <= 80)) || echo "      ... and $((lines - 80)) more lines"
    printf '      to do: %s\n' "$(remedy "$name")"
    failed+=("$name")
  fi
done
if ((${#failed[@]})); then
  echo "verify: ${#failed[@]} of ${#selected[@]} checks failed: ${failed[*]}; run one again with: hack/verify/all.sh NAME" >&2
  exit 1
fi
echo "verify: ${#selected[@]} checks passed"
