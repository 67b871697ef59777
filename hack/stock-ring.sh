#!/usr/bin/env bash
# Ring 2 on unmodified kernels of distributions, in emulated machines: for each of KERNEL
# (debian-12, debian-13, debian-newest; all three without) the tests that say most, those
# that RUN matches, or with RUN=all every one. CPUS, LIMIT, KVM and the rest are as in
# hack/kernel-ring.sh. What the guests said is kept in _output/stock/KERNEL.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Every mode, kind of volume and filesystem; a warm restart; a cold move; power lost under
# writeback; the order of flushes; a bound on dirty data under load; an SSD that fails; a mode
# that changes; the rescue; several paths, their loss for a while and for good; the storage server and its crashes;
# a stream between two nodes, and what it rests on; what the kernel counts of failed requests, of sizes and of areas;
# snapshots, and what they freeze; scrubs, checksums, mirrors, an SSD that leaves, many readers, dropped flushes, counts of reads; a campaign of disasters around streams, the loss of power among them.
most='^TestKernel(Targets|OldXFS|SMART|Smoke|Lifecycle|WarmRestart|MoveCold|Move|MapAfterData|FlushUnderLoad|DirtyLimit|FailoverAtRisk|Change|Rescue|Multipath|PathsReturn|PathsOver|ShutOut|DeviceInfo|Volume|Restart|Stream|StreamPrewarmed|StreamLoad|StreamLevels|StreamLevelsControl|HotSetStream|CampaignStream|IOErrors[A-Za-z]*|IOSizes[A-Za-z]*|IOAreas|Freeze|Snapshot[A-Za-z]*|Scrub|Integrity|IntegrityDirty|Unsafe|Readers|ReaderJoins|MirrorHad|Evacuate|Heat)$'
run=${RUN:-$most}
[[ $run != all ]] || run=

child=
trap '[[ -z $child ]] || kill "$child" 2>/dev/null; wait; exit 143' INT TERM
failed=()
for kernel in ${KERNEL:-debian-12 debian-13 debian-newest}; do
  echo "=== $kernel"
  start=$SECONDS
  KERNEL=$kernel RUN=$run LIMIT=${LIMIT:-2h} KEEP=$PWD/_output/stock/$kernel hack/kernel-ring.sh &
  child=$!
  wait "$child" || failed+=("$kernel")
  child=
  echo "=== $kernel: $((SECONDS - start)) s"
done
((${#failed[@]} == 0)) || { echo "failed on: ${failed[*]}"; exit 1; }
