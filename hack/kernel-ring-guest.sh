#!/bin/bash
# Runs inside the guest: the kernel tests of one package. When one fails,
# its output is printed, and then the output of all; with VERBOSE=true always.
set -u
cp kernel.test /var/tmp/kernel.test # the shared folder is slow to run from
start=$SECONDS
# What follows a failed test in this kernel would fail for what that has left.
/var/tmp/kernel.test -test.failfast -test.run "$RUN" -test.skip "$SKIP" -test.short="${SHORT:-true}" -test.v -test.timeout "${LIMIT:-25m}" > /tmp/out 2>&1
rc=$?
grep -aE '^ *--- |^(PASS|FAIL|panic|campaign|skipped)' /tmp/out
# Bit 7: the kernel has died of something (Documentation/admin-guide/tainted-kernels.rst).
if ((rc == 0 && $(< /proc/sys/kernel/tainted) & 128)); then
  echo "the kernel has oopsed"
  rc=1
fi
if ((rc != 0)); then
  echo "== what the failed tests said"
  awk '/^=== RUN +[^\/]*$/ { said = "" } { said = said $0 "\n" } /^(--- FAIL|panic)/ { printf "%s", said; said = "" }' /tmp/out
  echo "== everything"
  cat /tmp/out
  echo "== the kernel's last words"
  dmesg | tail -n 100
fi
if ((rc == 0)) && [[ ${VERBOSE:-} == true ]]; then
  cat /tmp/out
fi
if ((rc == 0)) && [[ $RUN == ^TestKernel* ]] && ! grep -aq '^--- PASS' /tmp/out; then
  echo "no kernel test passed"
  rc=1
fi
echo "$((SECONDS - start)) s"
exit "$rc"
