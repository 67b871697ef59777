#!/usr/bin/env bash
# Runs inside the guest, in the checkout: starts the Docker engine, makes the node image
# known to it, and runs the ring.
set -euo pipefail
parts=$PWD/_output/kind-guest
export PATH=$parts:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
# What a running udev would make.
for i in 0:stdin 1:stdout 2:stderr; do ln -sfn "/proc/self/fd/${i%%:*}" "/dev/${i#*:}"; done
ln -sfn /proc/self/fd /dev/fd
ip link set lo up
sysctl --quiet --write net.ipv4.ip_forward=1
modprobe --all overlay veth bridge br_netfilter iptable_filter iptable_nat iptable_mangle iptable_raw ip6table_filter ip6table_nat
for tool in iptables ip6tables; do update-alternatives --set "$tool" "/usr/sbin/$tool-legacy" >/dev/null; done
mkfs.ext4 -q -m 0 /dev/ubdb
mkdir -p /var/lib/docker
mount /dev/ubdb /var/lib/docker
dockerd >/var/log/dockerd.log 2>&1 &
engine=$!
trap 'kill $engine; wait $engine || true' EXIT
for _ in $(seq 120); do
  ! docker info >/dev/null 2>&1 || break
  sleep 1
done
docker info --format 'Docker {{.ServerVersion}} on {{.KernelVersion}}' || { cat /var/log/dockerd.log; exit 1; }
docker import --change 'ENV container=docker' --change 'STOPSIGNAL SIGRTMIN+3' \
  --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' "$parts/node.tar" nearflash.local/kind-node:1
# There are no images of kind's network of pods and of its name server; the lab's agent
# has completed the guest's cpuinfo for kubelets; and everything takes longer than
# kubeadm waits. kind itself has kubeadm skip preflight.
config=/run/cluster.yaml
sed -e 's|^nodes:|networking:\n  disableDefaultCNI: true\nnodes:|' \
  -e 's|^  - role: control-plane|&\n    extraMounts:\n      - {hostPath: /run/cpuinfo, containerPath: /proc/cpuinfo}|' \
  -e 's|^    extraMounts: &devices|&\n      - {hostPath: /run/cpuinfo, containerPath: /proc/cpuinfo}|' e2e/kind/cluster.yaml >"$config"
cat >>"$config" <<'END'
  - |
    kind: InitConfiguration
    skipPhases: [preflight, addon/coredns]
    timeouts: {kubernetesAPICall: 10m, controlPlaneComponentHealthCheck: 10m, kubeletHealthCheck: 10m}
  - |
    kind: JoinConfiguration
    timeouts: {kubernetesAPICall: 10m, kubeletHealthCheck: 10m, tlsBootstrap: 10m, discovery: 10m}
END
KIND_IMAGE=nearflash.local/kind-node:1 KIND_CONFIG=$config STATE=/var/lib/docker/ring BUILD=no hack/kind/ring.sh
