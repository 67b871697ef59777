#!/bin/bash
# Runs inside the guest: the kernel tests of every test binary of this folder.
# The whole output of a binary that failed is printed.
set -u
failed=0 ran=0
for t in ./*.test; do
  echo "== ${t#./}"
  start=$SECONDS
  cp "$t" /var/tmp/test # the shared folder is slow to run from
  /var/tmp/test -test.run "${RUN:-^TestKernel}" -test.v -test.timeout 25m > /tmp/out 2>&1
  rc=$?
  grep -aE '^ *--- |^(PASS|FAIL|panic)' /tmp/out
  if ((rc != 0)); then
    cat /tmp/out
    failed=1
  fi
  if grep -aq '^--- PASS' /tmp/out; then ran=1; fi
  echo "== ${t#./}: exit status $rc after $((SECONDS - start)) s"
done
if ((!ran)); then
  echo "no kernel test passed"
  failed=1
fi
exit $failed
