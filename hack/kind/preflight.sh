#!/usr/bin/env bash
# What `make e2e-kind` needs of this machine: each thing that is missing, and what to
# do about it. Loads kernel modules, and changes nothing else. Exit status 1 if
# something is missing.
set -uo pipefail
missing=0

# lacks WHAT REMEDY
lacks() {
  echo "missing: $1; remedy: $2" >&2
  missing=1
}

if ((EUID != 0)); then
  lacks "root" "run it as root: it makes loop devices and loads kernel modules"
fi
for tool in "kind:install kind 0.33 or later, https://kind.sigs.k8s.io" "kubectl:install kubectl" "helm:install helm 3.14 or later" \
  "losetup:install the package util-linux" "dmsetup:install the package dmsetup"; do
  command -v "${tool%%:*}" >/dev/null || lacks "the program ${tool%%:*}" "${tool#*:}"
done
if ! command -v docker >/dev/null; then
  lacks "the program docker" "install Docker (docker.io or docker-ce)"
elif ! problem=$(docker info --format '{{.ServerVersion}}' 2>&1 >/dev/null); then
  lacks "a Docker engine that answers: $(tail -n 1 <<<"$problem" | cut -c1-200)" "start it (systemctl start docker), or let DOCKER_HOST name one on this machine"
elif [[ $(docker info --format '{{.OperatingSystem}}') == *"Docker Desktop"* ]]; then
  lacks "an engine on this machine's own kernel" "use Docker Engine: that of Docker Desktop is in a virtual machine with another kernel"
fi

for module in dm-mod dm-cache dm-cache-smq dm-thin-pool dm-clone dm-multipath dm-round-robin dm-zero dm-raid \
  loop iscsi_tcp configfs target_core_mod target_core_iblock iscsi_target_mod; do
  modprobe --quiet "$module" 2>/dev/null # may be built in: what counts is below
done
if targets=$(dmsetup targets 2>/dev/null); then
  for target in "cache:CONFIG_DM_CACHE, and CONFIG_DM_CACHE_SMQ for its policy:2" "thin-pool:CONFIG_DM_THIN_PROVISIONING:1" \
    "clone:CONFIG_DM_CLONE:1" "multipath:CONFIG_DM_MULTIPATH:1" "zero:CONFIG_DM_ZERO:1"; do
    IFS=: read -r name option major <<<"$target"
    have=$(awk -v name="$name" '$1 == name {sub("^v", "", $2); print int($2)}' <<<"$targets")
    ((${have:-0} >= major)) ||
      lacks "the device-mapper target $name, version $major" "use a kernel with $option; of some distributions it is in a package of its own (linux-modules-extra)"
  done
elif command -v dmsetup >/dev/null; then
  lacks "a kernel with the device mapper" "use a kernel with CONFIG_BLK_DEV_DM, and let this machine load dm-mod"
fi
[[ -d /sys/class/iscsi_transport/tcp ]] || lacks "the kernel's iSCSI initiator" "use a kernel with CONFIG_ISCSI_TCP (module iscsi_tcp)"
mountpoint --quiet /sys/kernel/config || mount -t configfs none /sys/kernel/config 2>/dev/null
[[ -d /sys/kernel/config/target ]] || lacks "the kernel's iSCSI target" "use a kernel with CONFIG_TARGET_CORE, CONFIG_TCM_IBLOCK and CONFIG_ISCSI_TARGET (module target_core_mod)"
losetup --find >/dev/null 2>&1 || lacks "a free loop device" "use a kernel with CONFIG_BLK_DEV_LOOP; \`losetup --list\` shows those in use"
exit "$missing"
