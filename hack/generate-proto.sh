#!/usr/bin/env bash
# Regenerates the Go code of all protocol buffer definitions.
# Needs protoc (Debian: protobuf-compiler); the plugins are built from the Go proxy at the versions below.
set -euo pipefail

PROTOC_GEN_GO_VERSION=v1.36.12
PROTOC_GEN_GO_GRPC_VERSION=v1.6.1

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v protoc >/dev/null || { echo "protoc is missing: install the package protobuf-compiler" >&2; exit 1; }

tools="${XDG_CACHE_HOME:-$HOME/.cache}/nearflash/protoc-${PROTOC_GEN_GO_VERSION}-${PROTOC_GEN_GO_GRPC_VERSION}"
if [[ ! -x $tools/protoc-gen-go-grpc ]]; then
  mkdir -p "$tools"
  (cd /
   GOBIN=$tools go install "google.golang.org/protobuf/cmd/protoc-gen-go@${PROTOC_GEN_GO_VERSION}"
   GOBIN=$tools go install "google.golang.org/grpc/cmd/protoc-gen-go-grpc@${PROTOC_GEN_GO_GRPC_VERSION}")
fi

PATH=$tools:$PATH protoc --proto_path=. \
  --go_out=. --go_opt=module=github.com/nearflash/nearflash \
  --go-grpc_out=. --go-grpc_opt=module=github.com/nearflash/nearflash \
  pkg/target/targetpb/target.proto
