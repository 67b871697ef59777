#!/usr/bin/env bash
# Runs in a privileged container of the machine's network and ends what a cluster of
# kind has left in the kernel, which outlives its containers: devices, sessions,
# exports. Everything is found by the names and devices that were made for it.
#   clean.sh INITIATORS SERVER NODES DISK...
#     INITIATORS  what the names of the nodes' initiators begin with, colon included
#     SERVER      server ID of the storage server
#     NODES       names of the nodes, with blanks between
#     DISK        loop devices below pools and storage server
set -uo pipefail
initiators=$1 server=$2 nodes=$3
shift 3
config=/sys/kernel/config/target
mountpoint --quiet /sys/kernel/config || mount -t configfs none /sys/kernel/config

# sessions prints the numbers of our sessions, disks their disks.
sessions() {
  local s
  for s in /sys/class/iscsi_session/session*; do
    [[ -e $s/initiatorname && $(<"$s/initiatorname") == "$initiators"* ]] && echo "${s##*/session}"
  done
}
disks() {
  local d n
  for n in $(sessions); do
    for d in /sys/class/iscsi_session/session"$n"/device/target*/*/block/*; do
      [[ -e $d ]] && echo "/dev/${d##*/}"
    done
  done
}

# remove_above removes the device-mapper devices that lie on the given ones, the
# upper first.
remove_above() {
  local name
  for _ in 1 2 3 4 5 6 7 8; do
    lsblk -nro NAME,TYPE "$@" 2>/dev/null | awk '$2 != "loop" && $2 != "disk" {print $1}' | sort -u >/tmp/above
    [[ -s /tmp/above ]] || return 0
    while read -r name; do
      # What waits for a path would never end.
      dmsetup message "$name" 0 fail_if_no_path 2>/dev/null
      dmsetup remove --noudevsync "$name" 2>/tmp/why
    done </tmp/above
    sleep 0.2
  done
  echo "still there: $(tr '\n' ' ' </tmp/above): $(</tmp/why)" >&2
  return 1
}

# unexport IQN BACKSTORE removes one export of the kernel's target.
unexport() {
  local tpg
  for tpg in "$config/iscsi/$1"/tpgt_*; do
    [[ -d $tpg ]] || continue
    echo 0 >"$tpg/enable"
    find "$tpg/acls" "$tpg/lun" -mindepth 2 -type l -delete 2>/dev/null
    rmdir "$tpg"/acls/*/lun_* "$tpg"/acls/* "$tpg"/lun/lun_* "$tpg"/np/* 2>/dev/null
    rmdir "$tpg"
  done
  [[ ! -d $config/iscsi/$1 ]] || rmdir "$config/iscsi/$1"
}

rc=0
read -rd "" -a above <<<"$(disks)" # /dev may lack the fd that another form needs
remove_above "$@" "${above[@]}" 2>/dev/null # the storage server's own are in use yet
for n in $(sessions); do
  iscsiadm --mode session --sid "$n" --logout || rc=1
done
names=("$server:")
for node in $nodes; do
  names+=("lend.$(printf %s "$node" | sha256sum | cut -c1-10).")
done
for name in "${names[@]}"; do
  for export in "$config/iscsi/iqn.2026-11.io.nearflash:$name"*; do
    [[ -d $export ]] && { unexport "${export##*/}" || rc=1; }
  done
  [[ $name == lend.* ]] && name=_$name
  for store in "$config"/core/*_*/"$name"*; do
    [[ -d $store ]] && { rmdir "$store" || rc=1; }
  done
done
remove_above "$@" || rc=1
exit "$rc"
