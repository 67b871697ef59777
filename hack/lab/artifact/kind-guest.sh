#!/usr/bin/env bash
# Makes, in the folder that it is run in, what kind in a guest needs:
#   root.ext4  root of a guest with a Docker engine
#   node.tar   file system of kind's node image, with the images of a control plane
# from the folder tree (Debian, with the sources of the kernel) and the environment:
# ENVTEST, KUBE and PROGRAMS (folders of programs), KIND (module of kind), VERSION (of
# Kubernetes), LINUX, PAUSE and INIT (guest kernel, sandbox, first process of a guest),
# SIZE (of root.ext4).
set -euo pipefail
src=$(echo tree/usr/src/linux-source-*.tar.xz)
kernel=$(ls tree/usr/lib/uml/modules)
[[ $("$LINUX" --version) == "$kernel" ]] || { echo "the suite has kernel $kernel by now, the guest kernel is $("$LINUX" --version)" >&2; exit 1; }

# The packaged kernel lacks the tables of iptables alone, which are modules. Whatever
# else they are loaded with stays as it is, so that they get the kernel's version.
mkdir source
tar -xf "$src" -C source --strip-components=1
rm "$src"
"$LINUX" --showconfig >source/.config
sed -i "s/^SUBLEVEL = .*/SUBLEVEL = ${kernel##*.}/" source/Makefile
enable=()
for option in IP_NF_{IPTABLES_LEGACY,FILTER,NAT,MANGLE,RAW} IP6_NF_{IPTABLES_LEGACY,FILTER,NAT,MANGLE,RAW}; do enable+=(-m "$option"); done
(cd source && scripts/config -e NETFILTER_XTABLES_LEGACY "${enable[@]}")
modules=(net/netfilter/x_tables.ko net/ipv4/netfilter/ip_tables.ko net/ipv6/netfilter/ip6_tables.ko)
for table in filter nat mangle raw; do modules+=(net/ipv{4/netfilter/iptable,6/netfilter/ip6table}_"$table".ko); done
for target in olddefconfig modules_prepare "${modules[*]}"; do
  read -ra words <<<"$target"
  make -C source ARCH=um KBUILD_MODPOST_WARN=1 -j"$(nproc)" "${words[@]}"
done

# archive NAME FOLDER writes a docker archive with the folder as its one layer.
archive() {
  local file=node/kind/images/${1##*/} layer config
  file=${file%%:*}.tar
  rm -rf archive && mkdir archive
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$2" -cf archive/layer.tar .
  layer=$(sha256sum archive/layer.tar | cut -d' ' -f1)
  printf '{"architecture":"amd64","os":"linux","config":{"Entrypoint":%s,"Env":["PATH=/usr/local/bin:/usr/sbin:/usr/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "${3:-null}" "$layer" >archive/config.json
  config=$(sha256sum archive/config.json | cut -d' ' -f1)
  mv archive/config.json "archive/$config.json"
  printf '[{"Config":"%s.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$config" "$1" >archive/manifest.json
  tar --owner=0 --group=0 -C archive -cf "$file" "$config.json" manifest.json layer.tar
  rm -rf archive "$2"
}
# programs NAME PROGRAM...
programs() {
  local name=$1
  shift
  mkdir -p layer/usr/local/bin layer/etc layer/tmp
  cp "$@" layer/usr/local/bin/
  archive "$name" layer
}

mkdir -p node/kind/images node/usr/local/bin node/usr/bin node/etc/cni/net.d node/etc/kubernetes/manifests node/opt/cni/bin
cp -r "$KIND"/images/base/files/{etc,kind,usr} node/
chmod -R u+w node
find node -type d -exec chmod 755 {} +
chmod 755 node/usr/local/bin/* node/kind/bin/*
programs "registry.k8s.io/kube-apiserver:$VERSION" "$ENVTEST/kube-apiserver"
programs "registry.k8s.io/kube-controller-manager:$VERSION" "$KUBE/kube-controller-manager"
programs "registry.k8s.io/kube-scheduler:$VERSION" "$KUBE/kube-scheduler"
programs "$("$PROGRAMS/kubeadm" config images list --kubernetes-version "$VERSION" 2>/dev/null | grep /etcd:)" "$ENVTEST/etcd"
mkdir layer && cp "$PAUSE" layer/pause
archive "$(sed -n 's/^ *sandbox_image = "\(.*\)"/\1/p' node/etc/containerd/config.toml)" layer '["/pause"]'
# kube-proxy calls iptables: Debian's, with its libraries.
mkdir -p layer/usr/{sbin,lib64,lib/x86_64-linux-gnu,local/bin} layer/run layer/tmp
ln -s usr/lib usr/lib64 usr/sbin layer/
cp -a tree/usr/lib64/. layer/usr/lib64/
cp -r tree/usr/lib/x86_64-linux-gnu/xtables layer/usr/lib/x86_64-linux-gnu/
cp tree/usr/sbin/{xtables-legacy-multi,conntrack} layer/usr/sbin/
chroot tree ldd /usr/sbin/xtables-legacy-multi /usr/sbin/conntrack | grep -o '/[^ ]*\.so[^ ]*' | sort -u |
  while read -r lib; do cp -L "tree$lib" layer/usr/lib/x86_64-linux-gnu/; done
for name in ip{,6}tables{,-save,-restore}; do ln -s xtables-legacy-multi "layer/usr/sbin/$name"; done
cp "$PROGRAMS/kube-proxy" layer/usr/local/bin/
archive "registry.k8s.io/kube-proxy:$VERSION" layer

# What kind's Dockerfile and its build of a node image do to Debian. The network of pods
# is a bridge: none of ours talks to a pod of another node.
echo "$VERSION" >node/kind/version
cp "$PROGRAMS/kubeadm" "$KUBE/kubelet" "$ENVTEST/kubectl" node/usr/bin/
cp tree/usr/lib/cni/{bridge,host-local,loopback,portmap,ptp} node/opt/cni/bin/
cat >node/etc/cni/net.d/10-bridge.conflist <<'END'
{"cniVersion": "1.0.0", "name": "kind", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.77.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
# kind waits 30 s for a node to start, which three at once on one processor do not keep,
# and it does not know of the images. So kubeadm waits for both.
sed -i "s|^log_info 'starting init'|echo 'Reached target Multi-User System, as far as kind is concerned'\n&|" node/usr/local/bin/entrypoint
grep -q '^echo .Reached target' node/usr/local/bin/entrypoint
cat >node/etc/systemd/system/load-images.service <<'END'
[Unit]
DefaultDependencies=no
After=containerd.service
Requires=containerd.service
[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=15min
ExecStart=/kind/bin/load-images.sh
END
cat >node/kind/bin/load-images.sh <<'END'
#!/bin/bash
set -e
cd /kind/images
images=(pause.tar kube-proxy.tar)
[[ $(hostname) != *control-plane* ]] || images=(*.tar)
for image in "${images[@]}"; do ctr -n k8s.io images import "$image"; done
END
cat >node/usr/local/bin/kubeadm <<'END'
#!/bin/bash
until systemctl start load-images.service; do sleep 1; done
# A join gives up when one answer takes 10 s, whatever its configuration says.
for _ in 1 2 3 4 5; do
  ! /usr/bin/kubeadm "$@" || exit 0
  [[ $1 == join ]] || exit 1
done
exit 1
END
chmod 755 node/kind/bin/load-images.sh node/usr/local/bin/kubeadm
sed -i 's|/usr/local/bin/containerd|/usr/bin/containerd|' node/etc/systemd/system/containerd.service
chroot tree ctr oci spec | jq '.hooks.createContainer = [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' >node/etc/containerd/cri-base.json
rm -rf tree/usr/lib/systemd/system/{multi-user,local-fs,basic}.target.wants/* tree/etc/systemd/system/*.wants \
  tree/usr/lib/systemd/system/sockets.target.wants/*{udev,initctl}* tree/usr/lib/systemd/system/sysinit.target.wants/{systemd-tmpfiles-setup.service,*udev*}
mkdir -p node/etc/systemd/system/multi-user.target.wants
for unit in kubelet containerd undo-mount-hacks; do
  ln -s "/etc/systemd/system/$unit.service" node/etc/systemd/system/multi-user.target.wants/
done
ln -s /dev/null node/etc/systemd/system/systemd-binfmt.service
# One after the other into one folder: docker refuses an archive that has a path twice.
mkdir merged
tar -C tree --numeric-owner --exclude=./usr/lib/uml --exclude='./usr/bin/docker*' --exclude=./usr/sbin/dockerd \
  --exclude=./usr/bin/linux.uml --exclude=./usr/src --exclude='./dev/*' --exclude='./var/cache/apt/*' -cf - . | tar -C merged -xf -
tar -C node --owner=0 --group=0 -cf - . | tar -C merged --keep-directory-symlink -xf -
tar -C merged --numeric-owner -cf node.tar .

mkdir -p tree/usr/lib/modules
mv "tree/usr/lib/uml/modules/$kernel" tree/usr/lib/modules/
for module in "${modules[@]}"; do cp "source/$module" "tree/usr/lib/modules/$kernel/kernel/${module%/*}/"; done
chroot tree depmod "$kernel"
install -m 755 "$INIT" tree/usr/sbin/guest-init
rm -f tree/etc/resolv.conf tree/etc/hostname
echo '# A guest has no name server.' >tree/etc/resolv.conf
printf '127.0.0.1 localhost\n::1 localhost\n' >tree/etc/hosts
: >tree/etc/machine-id
mke2fs -q -t ext4 -m 0 -E lazy_itable_init=0,lazy_journal_init=0 -d tree root.ext4 "$SIZE"
chmod 444 root.ext4 node.tar
rm -rf tree source node merged
