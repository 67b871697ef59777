#!/usr/bin/env bash
# The ring on kind in a guest of the lab: a Docker engine, kind and a node image that
# consists of what the lab has, with no registry. For machines without Docker or dm-cache.
#   LABELS  label filter of the specs (default: smoke)
#   LIMIT   time that the guest has (default: 90m)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$PWD/_output/kind-guest
BUILD=only hack/kind/ring.sh
lab=$PWD/_output/kind/lab
parts=$("$lab" artifacts kind-guest --print-dir)
mkdir -p "$out"
kubectl=$("$lab" artifacts envtest --print-dir)/kubectl
helm=$("$lab" artifacts helm --print-dir)/helm
# The guest sees this checkout alone.
cp --update "$parts/kind" "$kubectl" "$helm" "$parts/node.tar" "$out/"
# In memory, when there is room, etcd need not wait for the machine's own disk.
room=$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -1 || echo 0)
((room < 12)) || export TMPDIR=/dev/shm
exec "$lab" guest run --root "$parts/root.ext4" --disks 1 --disk-size 16384 --memory 5500 --timeout "${LIMIT:-90m}" \
  --env "LABELS=${LABELS:-smoke}" . -- bash hack/kind/guest-run.sh
