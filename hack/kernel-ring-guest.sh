#!/bin/bash
# Runs inside the guest: the kernel tests of one package. When one fails,
# its output is printed, and then the output of all; with VERBOSE=true always.
# What they say is in the folder that the host shares, and so outlives this kernel.
set -u
cp kernel.test /var/tmp/kernel.test # the shared folder is slow to run from
# cache_dump reads files with direct I/O, which tmpfs has from Linux 6.6 on.
dd if=/dev/zero of=/tmp/direct bs=4096 count=1 oflag=direct 2>/dev/null || export TMPDIR=/var/tmp
rm -f /tmp/direct
start=$SECONDS
# What follows a failed test in this kernel would fail for what that has left.
/var/tmp/kernel.test -test.failfast -test.run "$RUN" -test.skip "$SKIP" -test.short="${SHORT:-true}" -test.v -test.timeout "${LIMIT:-25m}" > said 2>&1
rc=$?
grep -aE '^ *--- |^(PASS|FAIL|panic|campaign|skipped)' said
# Bit 7: the kernel has died of something (Documentation/admin-guide/tainted-kernels.rst).
if ((rc == 0 && $(< /proc/sys/kernel/tainted) & 128)); then
  echo "the kernel has oopsed"
  rc=1
fi
if ((rc != 0)); then
  echo "== what the failed tests said"
  awk '/^=== RUN +[^\/]*$/ { said = "" } { said = said $0 "\n" } /^(--- FAIL|panic)/ { printf "%s", said; said = "" }' said
  echo "== everything"
  cat said
  echo "== the kernel's last words"
  dmesg | tail -n 100
fi
if ((rc == 0)) && [[ ${VERBOSE:-} == true ]]; then
  cat said
fi
if ((rc == 0)) && [[ $RUN == ^TestKernel* ]] && ! grep -aq '^--- PASS' said; then
  echo "no kernel test passed"
  rc=1
fi
echo "$((SECONDS - start)) s"
exit "$rc"
