#!/bin/sh
# emulate.sh INTERPRETER COMMAND [ARGUMENT]...
#
# Runs a command, below which programs of arm64 run by the emulator INTERPRETER. It is
# called in a user namespace and a mount namespace of its own: since Linux 6.7 a user
# namespace has its own binfmt_misc, and the machine's is left alone. On older kernels the
# machine itself must know the emulator. BINFMT_DIR is for tests.
set -eu
interpreter=$1
shift
binfmt=${BINFMT_DIR:-/proc/sys/fs/binfmt_misc}

if mount -t binfmt_misc binfmt_misc "$binfmt" 2>/dev/null && [ -w "$binfmt/register" ]; then
  # The first bytes of an ELF program (64 bits, little endian, EXEC or DYN, AArch64) and
  # which bits of them count. F opens the emulator now, so that a chroot need not have it;
  # C takes the identity from the program, as for setuid.
  magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  printf '%s' ":qemu-aarch64:M::$magic:$mask:$interpreter:OCF" >"$binfmt/register"
elif ! grep -qs '^enabled' "$binfmt/qemu-aarch64"; then
  echo "programs of arm64 cannot run here: emulating them needs Linux 6.7, or binfmt_misc with qemu-aarch64 and the flag F (Debian's package qemu-user-binfmt)" >&2
  exit 1
fi
exec "$@"
