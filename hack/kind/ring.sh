#!/usr/bin/env bash
# The Ginkgo suite on a cluster of kind, on this machine's own kernel. Everything that
# it makes has the cluster's name, and is ended in every case.
#   LABELS      label filter of the specs (default: !lab && !slow)
#   TIMEOUT     limit of the specs (default: 60m)
#   VERBOSE     false prints failures only
#   KIND_IMAGE  node image (default: that of the kind program)
#   KIND_CONFIG configuration of the cluster (default: e2e/kind/cluster.yaml)
#   STATE       folder of disks, keys and kubeconfig (default: _output/kind)
#   BUILD       "only" ends when everything is built, "no" takes what that has left
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=$PWD/_output/kind

build() {
  mkdir -p "$bin"
  go build -o "$bin/lab" ./hack/lab
  "$bin/lab" artifacts kind
  export CGO_ENABLED=0
  go build -trimpath -o "$bin/kind-parts" ./hack/lab/kind
  go build -o "$bin/kubectl-nearflash" ./cmd/kubectl-nearflash
  go test -tags e2e -c -o "$bin/e2e.test" ./e2e
}
[[ ${BUILD:-} != only ]] || { build; exit; }

hack/kind/preflight.sh
name=kind-nearflash-$(pwd | cksum | cut -d' ' -f1)
out=$(realpath --canonicalize-missing "${STATE:-$bin}")
image=nearflash.local/nearflash-target:dev
initiators=iqn.2026-11.io.nearflash.kind.$name
workers=("$name-worker" "$name-worker2")
mkdir -p "$out"
exec 9>"$out/.lock"
flock --nonblock 9 || { echo "another run of this checkout is under way" >&2; exit 1; }
export KUBECONFIG=$out/kubeconfig

child=
# run is for what takes long: in the background, because a trap waits for what runs in
# the foreground.
run() {
  "$@" 9>&- &
  child=$!
  wait "$child"
  child=
}

loops() { losetup --noheadings --raw --output NAME,BACK-FILE | awk -v dir="$out/disks/" 'index($2, dir) == 1 {print $1}'; }

logs() {
  [[ -s $KUBECONFIG ]] || return 0 # there is no cluster yet
  kubectl get pods --all-namespaces --output wide || true
  kubectl get events --all-namespaces --field-selector type=Warning --sort-by .lastTimestamp | tail -n 20 || true
  kubectl logs --namespace nearflash --selector app.kubernetes.io/name=nearflash --all-containers --prefix --tail 40 || true
  for part in storage iscsid; do docker logs --tail 40 "$name-$part" || true; done
  dmsetup table || true
}

# sweep ends what this run, or a killed one before it, has made.
sweep() {
  local rc=0 devices device containers
  kind delete cluster --name "$name" --kubeconfig "$KUBECONFIG" || rc=1
  mapfile -t devices < <(loops)
  if ((${#devices[@]})) && [[ -n $(docker images --quiet "$image") ]]; then
    # The storage server and iscsid still run: sessions end in order.
    docker run --rm --interactive --privileged --network host --volume /dev:/dev --entrypoint bash "$image" \
      -s "$initiators:" "$name" "${workers[*]}" "${devices[@]}" <hack/kind/clean.sh || rc=1
  fi
  mapfile -t containers < <(docker ps --all --quiet --filter "name=^/?$name-(storage|iscsid)\$")
  ((${#containers[@]} == 0)) || docker rm --force --volumes "${containers[@]}" >/dev/null || rc=1
  for device in "${devices[@]}"; do losetup --detach "$device" || rc=1; done
  if [[ -n $(loops) ]]; then
    echo "still in use: $(loops | tr '\n' ' ')(lsblk shows by what)" >&2
    return 1
  fi
  rm -rf "$out/disks" "$out/files" "$KUBECONFIG"
  return "$rc"
}

finish() {
  local rc=$?
  trap - EXIT
  trap '' INT TERM HUP
  set +e
  if [[ -n $child ]]; then
    kill "$child" 2>/dev/null
    wait "$child"
  fi
  ((rc == 0)) || logs
  sweep || rc=1
  exit "$rc"
}
sweep
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

[[ ${BUILD:-} == no ]] || run build
run kind create cluster --name "$name" --kubeconfig "$KUBECONFIG" --config "${KIND_CONFIG:-e2e/kind/cluster.yaml}" \
  ${KIND_IMAGE:+--image "$KIND_IMAGE"} --wait 5m
for archive in _output/images/nearflash-{controller,node}.tar _output/kind-images/*.tar; do
  run kind load image-archive --name "$name" --nodes "${workers[0]},${workers[1]}" "$archive"
done
docker load --quiet --input _output/images/nearflash-target.tar

# A disk for each node, and one for the storage server.
mkdir -p "$out/disks" "$out/files"
declare -A device
for disk in "${workers[@]}" storage; do
  truncate --size "${DISK_SIZE:-4G}" "$out/disks/$disk.img"
  device[$disk]=$(losetup --find --show "$out/disks/$disk.img")
done
start() {
  local part=$1
  shift
  docker run --detach --name "$name-$part" --privileged --volume /dev:/dev --volume /lib/modules:/lib/modules:ro "$@" >/dev/null
}
# Its address is known once it runs; the server begins when it has its files. No udev
# works for LVM in a container, which makes its links itself then.
start storage --network kind --env DM_DISABLE_UDEV=1 --volume "$out/files/storage:/etc/nearflash-target:ro" --entrypoint bash "$image" \
  -c 'until [[ -e /etc/nearflash-target/config.yaml ]]; do sleep 0.2; done; exec /nearflash-target --config /etc/nearflash-target/config.yaml --v=2'
docker exec "$name-storage" bash -ec "vgcreate --devices $(printf %q "${device[storage]}") $name ${device[storage]}
  lvcreate --devices ${device[storage]} --yes --type thin-pool --zero y --extents 75%FREE --name pool $name" >/dev/null
address=$(docker inspect --format '{{.NetworkSettings.Networks.kind.IPAddress}}' "$name-storage")
"$bin/kind-parts" files --address "$address" --server "$name" --volume-group "$name" --device "${device[storage]}" "$out/files"
# One iscsid for all nodes, each of which has a name of its own. kind makes /sys
# read-only, where units are added to sessions.
pids=()
for node in "${workers[@]}"; do
  docker exec "$node" bash -ec "systemctl mask --now iscsid.socket iscsid.service 2>/dev/null || true
    mount -o remount,rw /sys
    mkdir -p /etc/iscsi && echo InitiatorName=$initiators:$node >/etc/iscsi/initiatorname.iscsi"
  pids+=("$(docker inspect --format '{{.State.Pid}}' "$node")")
done
start iscsid --network host --pid host --volume "$bin/kind-parts:/kind-parts:ro" --entrypoint /kind-parts "$image" iscsid "${pids[@]}"
until docker logs "$name-iscsid" 2>&1 | grep -q '^serving'; do
  [[ $(docker inspect --format '{{.State.Running}}' "$name-iscsid") == true ]]
  sleep 0.2
done
kubectl apply --server-side --filename deploy/helm/nearflash/crds
kubectl wait --for condition=Established --timeout 1m --filename deploy/helm/nearflash/crds
for node in "${workers[@]}"; do
  kubectl apply --filename - <<END
{"apiVersion": "nearflash.io/v1alpha1", "kind": "CachePool", "metadata": {"name": "$node"}, "spec": {"devices": ["${device[$node]}"]}}
END
done
run helm upgrade --install nearflash deploy/helm/nearflash --namespace nearflash --create-namespace --skip-crds \
  --values "$out/files/values.yaml" --wait --timeout 5m

NEARFLASH_STORAGE_CONTAINER=$name-storage NEARFLASH_KUBECTL_PLUGIN=$bin/kubectl-nearflash run "$bin/e2e.test" -ginkgo.label-filter="${LABELS:-!lab && !slow}" -ginkgo.timeout="${TIMEOUT:-60m}" \
  -ginkgo.v="${VERBOSE:-true}" -ginkgo.no-color
