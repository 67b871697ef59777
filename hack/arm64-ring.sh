#!/usr/bin/env bash
# What can be tested of arm64 without a kernel of it, on an emulated processor (QEMU's user
# mode): the packages that speak to the host or read its formats, built for arm64, and the
# tools in the images. Nothing here says how a kernel of arm64 does.
#
#   hack/arm64-ring.sh           both
#   hack/arm64-ring.sh go        only the packages (PACKAGES, RUN choose)
#   hack/arm64-ring.sh image     only the images; needs root and a Debian mirror
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || {
  echo "no qemu-aarch64-static (on Debian: apt-get install qemu-user-static)" >&2
  exit 1
}

# Those that know the host's structures, numbers and formats, and need nothing of it. Not
# pkg/hostexec: its tests start their own program, which the kernel cannot run, and with all
# of it emulated some commands did not begin within a minute; why is not known.
read -ra SELECTED <<<"${PACKAGES:-}"
((${#SELECTED[@]})) || SELECTED=(
  ./pkg/attach/layout ./pkg/attach/ssd ./pkg/attach/stack ./pkg/attach/state ./pkg/blockdev/... ./pkg/cachemap ./pkg/cachetools
  ./pkg/devmapper/... ./pkg/driver ./pkg/durable ./pkg/freeze ./pkg/ioerrors ./pkg/iosizes ./pkg/journal ./pkg/keyagreement ./pkg/loginaccount
  ./pkg/lvm/... ./pkg/mount ./pkg/observe ./pkg/peerexport ./pkg/pool ./pkg/quantity ./pkg/rescue ./pkg/reservation ./pkg/smart
  ./pkg/target/...
)

test_go() {
  GOARCH=arm64 CGO_ENABLED=0 go test -vet=off -exec "$emulator" ${RUN:+-run "$RUN"} "${SELECTED[@]}"
}

# unpack_image takes the layers out of an archive in their order.
unpack_image() {
  local archive=$1 root=$2 parts layer
  parts=$(mktemp -d)
  tar -xf "$archive" -C "$parts"
  grep -o '"Layers":\[[^]]*\]' "$parts/manifest.json" | grep -o '"[^"]*\.tar[^"]*"' | tr -d '"' >"$parts/layers"
  [[ -s $parts/layers ]]
  while IFS= read -r layer; do tar -xf "$parts/$layer" -C "$root"; done <"$parts/layers"
  rm -r "$parts"
}

# test_image unpacks an image and runs a command in it, below the emulator.
test_image() {
  local archive=$1 root rc=0
  shift
  root=$(mktemp -d)
  unpack_image "$archive" "$root"
  mkdir -p "$root/proc" "$root/dev" "$root/tmp"
  cp hack/arm64-image.sh "$root/tmp/check.sh"
  unshare --map-root-user --mount hack/lab/artifact/emulate.sh "$emulator" bash -euc '
    mount --rbind /proc "$1/proc"
    for file in null zero urandom; do : >"$1/dev/$file"; mount --bind "/dev/$file" "$1/dev/$file"; done
    exec chroot "$@"' sh "$root" "$@" || rc=$?
  rm -r --one-file-system "$root"
  return $rc
}

test_images() {
  local images
  images=${IMAGES:-$(go run ./hack/lab artifacts --print-dir images-arm64)}
  test_image "$images/nearflash-node.tar" /bin/sh /tmp/check.sh
  test_image "$images/nearflash-target.tar" /bin/sh /tmp/check.sh target
  # Nothing else is in it.
  test_image "$images/nearflash-controller.tar" /nearflash-controller --version
}

case ${1:-all} in
  go) test_go ;;
  image) test_images ;;
  all) test_go && test_images ;;
  *) sed -n '2,9p' "$0" >&2; exit 2 ;;
esac
