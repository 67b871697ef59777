# Sourced by what runs Kubernetes' own suite of storage tests against the driver in a lab,
# with the command in the array lab and hack/lab-part.sh.
#   FOCUS    regular expression of the tests' names (default: all of the driver)
#   LABELS   label filter of the tests (default: not features that are not claimed, and
#            not what disturbs a whole cluster)
#   SUBSET   true runs the fixed part that `make test-upstream` has, whatever FOCUS says, and small
#            what `make test` has of it
#   PROCS    tests at a time (default: 4)
#   TIMEOUT  limit of the tests (default: 3h)
# shellcheck shell=bash

# upstream DIR TESTS runs the programs and images in TESTS, and writes to DIR.
upstream() {
  local dir="$1" tests="$2" least=1 passed rest i
  mkdir -p "$dir/tmp"
  run "${lab[@]}" images add "$tests"/*.tar
  local driver='External.Storage.*csi.nearflash.io.*Testpattern: '
  local focus="${FOCUS:-$driver}"
  if [[ ${SUBSET:-} == true ]]; then
    # One of each kind that a volume may be and of what may happen to it.
    focus="$driver"'(Dynamic PV \((block volmode|default fs|xfs)\).* volumes should store data|Generic.*late-binding.* ephemeral should create read/write|'\
'Dynamic PV \((block volmode|default fs)\)\(allowExpansion\).*while pod is using it|Dynamic PV \(default fs\)\] ('\
'provisioning should provision storage with mount options|read-write-once-pod|fsgroupchangepolicy \(OnRootMismatch\).*, new pod fsgroup applied|'\
'subPath should support file as subpath|volume-modify .* should (modify volume with no VAC|recover from invalid)))'
    least=13
  elif [[ ${SUBSET:-} == small ]]; then
    # Without what the driver's own specs have: what a pod may wish for, and growing.
    focus="$driver"'(Dynamic PV \((block volmode|xfs)\).* volumes should store data|Generic.*late-binding.* ephemeral should create read/write|'\
'Dynamic PV \(default fs\)\(allowExpansion\).*while pod is using it|Dynamic PV \(default fs\)\] ('\
'subPath should support file as subpath|volume-modify .* should modify volume with no VAC))'
    least=7
  fi
  # The tests leave temporary files.
  run "${lab[@]}" run -- env TMPDIR="$dir/tmp" "$dir/ginkgo" --procs="${PROCS:-4}" --no-color --timeout="${TIMEOUT:-3h}" \
    --focus="$focus" --label-filter="${LABELS:-Feature: isSubsetOf {VolumeAttributesClass\} && !Disruptive && !Serial}" \
    --output-dir="$dir" --json-report=report.json "$tests/e2e.test" -- \
    --provider=skeleton --repo-root="$PWD" --storage.testdriver="$PWD/e2e/upstream/testdriver.yaml" --report-dir="$dir"
  # A selection of nothing must not pass, nor a part that has become smaller unseen.
  passed=$(tr ',{' '\n\n' <"$dir/report.json" | awk '/"LeafNodeType":/ { it = /"It"/ } it && /"State": *"passed"/ { n++ } END { print n + 0 }')
  echo "$passed tests passed"
  ((passed >= least)) || { echo "at least $least were to run" >&2; return 1; }

  # A node gives up the caches of a volume that is gone in its own time.
  for ((i = 0; ; i++)); do
    rest=$(left)
    [[ -n $rest ]] || break
    ((i < 60)) || { printf 'left of the tests:\n%s\n' "$rest" >&2; return 1; }
    sleep 5
  done
  echo "nothing is left of them"
}

# left prints what there is of the tests' volumes, in the API and on the machines.
left() {
  local machine found
  "${lab[@]}" run -- kubectl get cachedvolumes,cachemigrations,cachehotsets,persistentvolumes,volumeattachments -o name || echo "the API server does not answer"
  for machine in node-a node-b storage; do
    found=$("${lab[@]}" exec "$machine" -- sh -c \
      'dmsetup ls; lvs --noheadings --options lv_name; ls /var/lib/nearflash/volumes /sys/class/iscsi_session /sys/kernel/config/target/iscsi; mount; true' 2>/dev/null) ||
      found="pvc-?, as it does not answer"
    grep -E 'pvc-|^session' <<<"$found" | sed "s/^/$machine: /" || true
  done
}
