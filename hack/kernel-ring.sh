#!/usr/bin/env bash
# Ring 2: tests with build tag "kernel", run as root on real device-mapper, LVM
# and iSCSI, in throw-away guests, GUESTS of them at the same time (three for each
# processor without: many more make each so slow that tests wait in vain).
# RUN limits them to names that match; SHORT=false runs the longest benchmarks too;
# MATRIX=whole kills the plugin at each step and not only at one of each phase, and runs
# the tests that make test leaves to make test-full.
# SEED, DISASTERS and KINDS are for campaigns (docs/reference/campaigns.md); without
# RUN and SEED the seed follows from the commit, so that each has other disasters, other halves
# of the steps that stand for a phase, and another third of the tests that take turns;
# LIMIT is the time that a guest has, 30m without; DISK the size of each of its three
# disks and MEMORY that of its memory in MiB; VERBOSE=true prints what tests say that pass.
# KERNEL=debian-12 (debian-13, debian-newest) runs them in an emulated machine with that
# distribution's kernel, of CPUS processors, 2 without; one at a time, if GUESTS does not say
# otherwise. KVM=true takes this machine's KVM instead of an emulator. KEEP=DIR is where what the
# guests said is kept, _output/kernel-ring without.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${KEEP:-$PWD/_output/kernel-ring}
rm -rf "$out" && mkdir -p "$out"

mapfile -t packages < <(grep -rl --include='*_test.go' '^//go:build kernel' pkg e2e | xargs -n1 dirname | sort -u)
((${#packages[@]})) || { echo "no package has kernel tests" >&2; exit 1; }
go build -o "$out/lab" ./hack/lab
"$out/lab" artifacts kernel ${KERNEL:-} > /dev/null
# Left to make test-full: what ring 1 has at every step on fakes that are held to the kernel,
# or the model in every order; that the tests find what they are for; and what takes minutes
# and is the smaller half of another test.
whole='^TestKernel(CampaignStream|KillTwice|KillWarmRestart|KillRemap|KillPrestage|HydrationStopped|RestoredNode|RestoredRecord|SeededBugs|ManyVolumes|PrestageInVain|PrewarmForgotten|PrewarmUnused|StreamLoad|StreamLevels|StreamLevelsControl|Advise|AdvisePostgreSQL|FormatBadSSD|FormatUnreadable|AdmittedAgain|ShutOutReturns|SecretsDiscarded|MirrorDegraded|PlaceMirror|MetricsCost|DirtyAge|CommandSurvives|FormatOnce|SecretsFull|BlocksOfOrigin|FlushUnderLoad|PrewarmCutShort|HandOverStream|Heat|Scan|SnapshotKilled|SnapshotProcess|SnapshotOfWritten|EvacuateMirror|IntegrityCost)$'
# Every commit has one third of these, by its seed. Most have a sibling that always runs; the others kill
# at the steps of one phase, or are a campaign over another driver.
third='^TestKernel(IntegrityFull|DirtyLimit|Rescue|MoveCold|Sanity|SanityOverDriver|CampaignOrigin|KillHydration|KillChange|KillFailover|Prewarm|Metrics|AdviseCost|AllDirty|KillPrewarm|KillCount|KillDirtyLimit|StreamPrewarmed|OriginErrors|StaticTakenAway|PlaceExtended|MoveSourceLost|Prestage|HandOver|HungSSD|Secrets|Volume|RecordLost|BlocksOfPeer|SwapIsNoStop|BlocksLeft|BlocksOfSSD|UpgradeMove|PoolFull|OriginOfDriver|RescueOverDriver|OriginVanishes|HydrationReader|FailoverHydration|LUNReplaced|ShutOutReader|EarlierVersion|ChangeImpossible|HotSet|HotSetStream|Preload|PreloadStream|PreloadOnDemand|PreloadRaw|FormatBug|PeerDies|Process|OriginGrows|RescueLate|Superseded|PathsReturn|SecretsReleased|FailoverAtRisk|MapAfterData|FailoverExported|MoveAgain|Upgrade|Mirror|MirrorTorn|Stripes|LUNExported|PathsOver|DeadPortal|StaticTakes|OriginLateWriter|OriginReserved|ReservedBusy|ScrubLoad|KillScrub|ReadersOfUncleanFilesystem|Evacuate|KillEvacuate|ReaderJoins|Scratch|IntegrityRescue|KillIntegrity|IntegrityDirty|ScrubPause|ScrubTrim|ScrubRate|MirrorBehind)$'
seed=${SEED:-}
[[ -n $seed || -n ${RUN:-} ]] || seed=$(git rev-parse HEAD 2>/dev/null | cksum | cut -d' ' -f1)
turn=${seed:-0}
# One job a guest: package, tests to run, tests to skip.
jobs=()
long=()
for p in "${packages[@]}"; do
  mapfile -t tests < <(sed -nE 's/^func (TestKernel[A-Za-z0-9]*)\(t .*/\1/p' "$p"/*_test.go)
  if [[ -n ${RUN:-} ]]; then
    ! grep -qE "${RUN%%/*}" <<<"$(printf '%s\n' "${tests[@]}")" || jobs+=("$p $RUN ^\$")
    continue
  fi
  # The longest, and csi-sanity, which a process can run only once, have a guest each and begin first; the others, which wait most of the
  # time, are dealt to guests for about four of them: fewer guests, and the last one ends late.
  hands=()
  i=0
  for t in "${tests[@]}"; do
    if [[ ${MATRIX:-} != whole && -z ${KERNEL:-} ]]; then
      [[ ! $t =~ $whole ]] || continue
      [[ ! $t =~ $third ]] || ((turn++ % 3 == 0)) || continue
    fi
    if [[ $t =~ ^TestKernel(Kill|Campaign|Sanity) ]]; then
      long+=("$p ^$t\$ ^\$")
    else
      hand=$((i++ % ((${#tests[@]} + 8) / 9)))
      hands[hand]+="${hands[hand]:+|}$t"
    fi
  done
  # Those of a package alone are long too, and its guests few.
  for hand in "${hands[@]}"; do
    if [[ $p == e2e/* ]]; then jobs+=("$p ^($hand)\$ ^\$"); else long+=("$p ^($hand)\$ ^\$"); fi
  done
done
jobs=("${long[@]}" "${jobs[@]}")
((${#jobs[@]})) || { echo "no test matches ${RUN:-}" >&2; exit 1; }
for i in "${!jobs[@]}"; do
  read -r p _ <<<"${jobs[i]}"
  mkdir "$out/$i"
  if [[ ! -f $out/${p//\//_}.test ]]; then
    echo "build $p"
    CGO_ENABLED=0 go test -c -tags kernel,faultpoints -o "$out/${p//\//_}.test" "./$p"
  fi
  ln "$out/${p//\//_}.test" "$out/$i/kernel.test"
  cp hack/kernel-ring-guest.sh "$out/$i/guest.sh"
done

# In memory, when there is room, the disks of the guests need not wait for the
# machine's own disk at every flush.
room=$(df --output=avail -B1G /dev/shm 2>/dev/null | tail -1 || echo 0)
((room < 8)) || export TMPDIR=/dev/shm

declare -A running=() # process -> job
finish() {
  local rc=$?
  trap - EXIT INT TERM
  # The lab program ends its guest when it is told to end.
  for pid in "${!running[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait || true
  exit "$rc"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

machine=()
memory=1024
if [[ -n ${KERNEL:-} ]]; then
  machine=(--kernel "$KERNEL" --cpus "${CPUS:-2}" --kvm="${KVM:-false}" --env "NEARFLASH_STOCK_KERNEL=$KERNEL")
  memory=2048
fi
start() {
  local run skip
  read -r _ run skip <<<"${jobs[$1]}"
  "$out/lab" guest run "${machine[@]}" --timeout "${LIMIT:-30m}" --disk-size "${DISK:-1024}" --memory "${MEMORY:-$memory}" --env "RUN=$run" --env "SKIP=$skip" --env "SHORT=${SHORT:-true}" --env "VERBOSE=${VERBOSE:-false}" \
    --env "LIMIT=${LIMIT:-25m}" --env "SEED=$seed" --env "DISASTERS=${DISASTERS:-}" --env "KINDS=${KINDS:-}" --env "MATRIX=${MATRIX:-}" "$out/$1" > "$out/$1/log" 2>&1 &
  running[$!]=$1
}
failed=()
# Waits until one has ended, and prints what it said.
reap() {
  local pid rc=0
  wait -n -p pid "${!running[@]}" || rc=$?
  local i=${running[$pid]}
  unset "running[$pid]"
  echo "== ${jobs[i]}: exit status $rc"
  cat "$out/$i/log"
  ((rc == 0)) && return
  failed+=("$i")
  if ! grep -q '^== everything' "$out/$i/log" && [[ -s $out/$i/said ]]; then
    echo "== what the tests had said when the guest ended"
    tail -n 300 "$out/$i/said"
  fi
}
many=$((3 * $(nproc)))
[[ -z ${KERNEL:-} ]] || many=1
slots=${GUESTS:-$many}
for i in "${!jobs[@]}"; do
  while ((${#running[@]} >= slots)); do reap; done
  start "$i"
done
while ((${#running[@]})); do reap; done
# Once more at the end, where everybody looks first: what failed, and its last words.
for i in "${failed[@]}"; do
  echo "failed: ${jobs[i]}"
  sed '/^== everything/,$d' "$out/$i/log" | tail -n 25
done
((${#failed[@]} == 0))
