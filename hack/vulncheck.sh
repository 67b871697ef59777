#!/usr/bin/env bash
# Looks for known vulnerabilities in what the programs call, with the pinned
# govulncheck. It asks a database on the network, so that it is no part of the gate.
#
#   hack/vulncheck.sh              all packages
#   hack/vulncheck.sh PACKAGE...   only these
#
# NEARFLASH_VULNDB is the database, https or file, in the form of
# https://go.dev/doc/security/vuln/database; default https://vuln.go.dev.
#
# Ends with 0 if nothing was found, 3 if something was, 2 if it could not look.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

db=${NEARFLASH_VULNDB:-https://vuln.go.dev}
tools=${NEARFLASH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nearflash}/tools

if ! answer=$(curl --fail --silent --show-error --location --max-time 20 --output /dev/null "${db%/}/index/db.json" 2>&1); then
  echo "vulncheck: the database $db does not answer: $answer" >&2
  echo "vulncheck: nothing was looked for; set NEARFLASH_VULNDB to one that can be reached, also a copy on disk (file:///...)" >&2
  exit 2
fi

mkdir -p "$tools"
GOWORK=off go build -C hack/tools/vuln -trimpath -buildvcs=false -o "$tools/govulncheck" golang.org/x/vuln/cmd/govulncheck || exit 2

packages=("$@")
((${#packages[@]})) || packages=(./... ./hack/...)
"$tools/govulncheck" -db "$db" "${packages[@]}"
rc=$?
case $rc in
  0 | 3) exit $rc ;;
  *) echo "vulncheck: govulncheck ended with $rc" >&2; exit 2 ;;
esac
