#!/bin/sh
# The first process of every guest: mounts the host directory that the kernel
# command line names (host=DIR) and hands over to the init program in it.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
dir=
for word in $(cat /proc/cmdline); do
	case $word in host=*) dir=${word#host=} ;; esac
done
mkdir -p /host
if [ -z "$dir" ] || ! mount -t hostfs none /host -o "hostfs=$dir"; then
	echo "guest-init: no host directory (host=$dir)" >&2
	# The tree has no poweroff program; this takes effect in a moment.
	echo o >/proc/sysrq-trigger
	sleep 10
fi
exec /host/init
