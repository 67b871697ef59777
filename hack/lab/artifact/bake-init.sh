#!/bin/bash
# Runs as the first program of a guest whose root becomes the node base image:
# installs the containerd configuration, imports all images that do not change with
# the checkout. /host is the directory of the bake on the host;
# the last line of /host/result is "ok" when everything went well.
set -eu
shopt -s inherit_errexit nullglob

finish() {
	local rc=$?
	sync
	if [ "$rc" = 0 ]; then echo ok >/host/result; else echo "bake-init: exit $rc" >/host/result; fi
	mount -o remount,ro / || echo "remount failed" >/host/result
	# The tree has no poweroff program; this takes effect in a moment.
	echo o >/proc/sysrq-trigger
	sleep 10
}
exec >/host/bake.log 2>&1
trap finish EXIT

mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount -t cgroup2 none /sys/fs/cgroup
modprobe overlay
hostname bake

mkdir -p /etc/containerd /etc/cni/net.d /etc/kubernetes /var/lib/kubelet
install -m 0644 /host/containerd-config.toml /etc/containerd/config.toml

containerd >/host/containerd.log 2>&1 &
containerd=$!
for _ in $(seq 150); do
	if ctr version >/dev/null 2>&1; then break; fi
	sleep 0.2
done
ctr version

for image in /host/images/*.tar; do
	echo "${image##*/} at second $SECONDS"
	ctr -n k8s.io images import --all-platforms "$image"
done
ctr -n k8s.io images check
while read -r name; do
	# shellcheck disable=SC2016 # $3.. are awk's
	ctr -n k8s.io images check "name==$name" | awk 'NR == 2 && $0 ~ / complete .* true/ {found = 1} END {exit !found}'
done </host/names

kill "$containerd"
wait "$containerd" || true
rm -rf /var/lib/containerd/tmpmounts/* /var/log/*.log
