#!/bin/bash
# Runs inside the guest: every test binary of this directory, kernel tests only.
set -u
mkdir -p /run/lock/iscsi /run/lock/lvm
pgrep -x iscsid >/dev/null || iscsid
failed=0
for t in ./*.test; do
  echo "== ${t#./}"
  "$t" -test.run '^TestKernel' -test.v -test.timeout 10m > /tmp/out 2>&1
  rc=$?
  grep -E '^(=== RUN|--- |PASS|FAIL|ok)' /tmp/out | grep -v '=== RUN'
  if ((rc != 0)); then cat /tmp/out; failed=1; fi
  if ! grep -q '^--- PASS' /tmp/out; then echo "$t: no kernel test passed"; failed=1; fi
done
exit $failed
