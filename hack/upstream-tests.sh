# Sourced by what runs Kubernetes' own suite of storage tests against the driver in a lab,
# with the command in the array lab and hack/lab-part.sh.
#   FOCUS    regular expression of the tests' names (default: all of the driver)
#   LABELS   label filter of the tests (default: not features that are not claimed, and
#            not what disturbs a whole cluster)
#   SUBSET   true runs the fixed part that `make test-upstream` has, whatever FOCUS says, and small
#            what `make test` has of it
#   DISRUPTIVE  true runs what that leaves out, one at a time: it stops kubelets, and is told so
#            over SSH
#   ORIGIN   of the lab; what the driver claims over it is in e2e/upstream/csi
#   PROCS    tests at a time (default: 4, of DISRUPTIVE 1)
#   TIMEOUT  limit of the tests (default: 3h)
# shellcheck shell=bash

# upstream DIR TESTS runs the programs and images in TESTS, and writes to DIR.
upstream() {
  local dir="$1" tests="$2" least=1 claims="e2e/upstream${ORIGIN:+/csi}" passed rest i
  mkdir -p "$dir/tmp"
  run "${lab[@]}" images add "$tests"/*.tar
  for i in snapshotclass originclass; do
    if [[ -f $claims/$i.yaml ]]; then
      run "${lab[@]}" run -- kubectl apply --filename="$claims/$i.yaml"
    fi
  done
  local driver='External.Storage.*csi.nearflash.io.*Testpattern: '
  local focus="${FOCUS:-$driver}"
  if [[ ${SUBSET:-} == true ]]; then
    # One of each kind that a volume may be and of what may happen to it.
    focus="$driver"'(Dynamic PV \((block volmode|default fs|xfs)\).* volumes should store data|Generic.*late-binding.* ephemeral should create read/write|'\
'Dynamic PV \((block volmode|default fs)\)\(allowExpansion\).*while pod is using it|Dynamic PV \(default fs\)\] ('\
'provisioning should provision storage with (mount options|pvc data source$)|read-write-once-pod|fsgroupchangepolicy \(OnRootMismatch\).*, new pod fsgroup applied|'\
'subPath should support file as subpath|volume-modify .* should (modify volume with no VAC|recover from invalid))|'\
'Dynamic Snapshot \(delete policy\)\] snapshottable .*\(persistent\))'
    least=15
  elif [[ ${SUBSET:-} == small ]]; then
    # Without what the driver's own specs have: what a pod may wish for, and growing.
    focus="$driver"'(Dynamic PV \((block volmode|xfs)\).* volumes should store data|Generic.*late-binding.* ephemeral should create read/write|'\
'Dynamic PV \(default fs\)\(allowExpansion\).*while pod is using it|Dynamic PV \(default fs\)\] ('\
'subPath should support file as subpath|volume-modify .* should modify volume with no VAC))'
    least=7
  fi
  local labels='Feature: isSubsetOf {VolumeAttributesClass, VolumeSnapshotDataSource, VolumeSourceXFS} && !Disruptive && !Serial'
  local procs=4 ssh='' skip=() environment=(TMPDIR="$dir/tmp")
  if [[ ${DISRUPTIVE:-} == true ]]; then
    # Of a node without SELinux what says so is asked for all the same.
    labels='Feature: isSubsetOf {VolumeAttributesClass, VolumeSnapshotDataSource, VolumeSourceXFS, SELinux} && (Disruptive || Serial)'
    procs=1
    [[ -n ${FOCUS:-} ]] || least=15
    # It deploys images of other projects, of which there are none here.
    skip=(--skip='with any volume data source')
    environment+=(KUBE_SSH_BASTION=127.0.0.1:2222 KUBE_SSH_USER=root KUBE_SSH_KEY_PATH="$dir/key")
    # In the lab's network, so that it ends with the lab if not before.
    "${lab[@]}" run -- "$dir/lab" ssh "$dir/key" &
    ssh=$!
    # Without a key the tests skip themselves.
    for ((i = 0; ; i++)); do
      [[ ! -f $dir/key ]] || break
      ((i < 300)) || { echo "no SSH" >&2; return 1; }
      sleep 0.1
    done
  fi
  # The tests leave temporary files.
  run "${lab[@]}" run -- env "${environment[@]}" "$dir/ginkgo" --procs="${PROCS:-$procs}" --no-color --timeout="${TIMEOUT:-3h}" \
    --focus="$focus" "${skip[@]}" --label-filter="${LABELS:-$labels}" \
    --output-dir="$dir" --json-report=report.json "$tests/e2e.test" -- \
    --provider=skeleton --repo-root="$PWD" --storage.testdriver="$PWD/$claims/testdriver.yaml" --report-dir="$dir"
  [[ -z $ssh ]] || kill "$ssh"
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

# left prints what there is of the tests' volumes, in the API, on the machines and with another
# driver.
left() {
  local machine found
  "${lab[@]}" run -- kubectl get --all-namespaces --output=name \
    cachedvolumes,cachemigrations,cachehotsets,persistentvolumes,volumeattachments,volumesnapshots,volumesnapshotcontents ||
    echo "the API server does not answer"
  for machine in node-a node-b storage; do
    found=$("${lab[@]}" exec "$machine" -- sh -c \
      'dmsetup ls; lvs --noheadings --options lv_name; ls /var/lib/nearflash/volumes /sys/class/iscsi_session /sys/kernel/config/target/iscsi; cat /sys/bus/rbd/devices/*/name; mount; true' 2>/dev/null) ||
      found="pvc-?, as it does not answer"
    grep -E 'pvc-|snapshot-|^session' <<<"$found" | sed "s/^/$machine: /" || true
  done
  if [[ ${ORIGIN:-} == ceph ]]; then
    found=$("${lab[@]}" origin exec -- rbd list) || found="pvc-?, as it does not answer"
    sed '/./s/^/ceph: /' <<<"$found"
  fi
}
