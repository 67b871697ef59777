#!/bin/sh
# What hack/arm64-ring.sh runs inside the image of the node plugin, or with the argument target
# in that of the storage server: each program that is called there starts, and those that work
# on files do so.
set -eu
cd /tmp

# says PATTERN COMMAND [ARGUMENT]...: the command starts and says so. Its status counts for
# nothing: lvm and dmsetup ask the device mapper, which is not there.
says() {
  pattern=$1
  shift
  out=$("$@" 2>&1) || true
  case $out in
    *"$pattern"*) echo "ok    $*" ;;
    *) echo "FAIL  $*: $out"; exit 1 ;;
  esac
}

[ "$(uname -m)" = aarch64 ]
[ "$(dpkg-query --admindir=/var/lib/dpkg -W -f '${Architecture}' lvm2)" = arm64 ]
says "LVM version" lvm version
says "kmod version" modprobe --version
if [ "${1:-}" = target ]; then
  says "nearflash-target v" /nearflash-target --version
  exit 0
fi
says "nearflash-node v" /nearflash-node --version
says "Library version" dmsetup version
says "iscsiadm version" iscsiadm --version
says "util-linux" blkid -V
says "util-linux" mount -V
says "mke2fs" mke2fs -V
says "e2fsck" e2fsck -V
says "resize2fs" resize2fs
says "mkfs.xfs version" mkfs.xfs -V
says "xfs_repair version" xfs_repair -V
says "xfs_growfs version" xfs_growfs -V
for tool in cache_check cache_dump cache_restore cache_writeback; do says "1." "$tool" -V; done

# The metadata of a cache, written and read again.
cat >cache.xml <<'XML'
<superblock uuid="" block_size="512" nr_cache_blocks="4" policy="smq" hint_width="4">
  <mappings>
    <mapping cache_block="0" origin_block="7" dirty="false"/>
    <mapping cache_block="3" origin_block="1" dirty="true"/>
  </mappings>
  <hints>
    <hint cache_block="0" data="AQAAAA=="/>
    <hint cache_block="3" data="AgAAAA=="/>
  </hints>
</superblock>
XML
truncate -s 8M cache.meta
cache_restore -i cache.xml -o cache.meta >/dev/null
cache_check cache.meta >/dev/null
cache_dump cache.meta >cache.again
# Whether the last line ends is the version's own choice.
[ "$(cat cache.xml)" = "$(cat cache.again)" ] || { diff cache.xml cache.again; exit 1; }
echo "ok    cache_restore, cache_check, cache_dump"

truncate -s 64M ext4.img
mke2fs -q -t ext4 ext4.img
e2fsck -fn ext4.img >/dev/null 2>&1
echo "ok    mke2fs, e2fsck"
truncate -s 320M xfs.img
mkfs.xfs -q xfs.img
xfs_repair -n -f xfs.img >/dev/null 2>&1
echo "ok    mkfs.xfs, xfs_repair"
