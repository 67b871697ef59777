# Sourced by what uses a lab of its own, with the command in the array lab: it is ended
# when the shell ends, also after a failure or a signal; of a failed run its logs are
# printed. Long commands go through run. Who has more to do at the end calls stop with what
# the shell ends with.
# shellcheck shell=bash
child=
stop() {
  local rc=${1:-$?}
  trap - EXIT
  trap '' INT TERM
  if [[ -n $child ]]; then
    kill -- "-$child" 2>/dev/null || true
    wait "$child" || true
  fi
  if ((rc != 0)); then "${lab[@]}" logs --tail 80 || true; fi
  "${lab[@]}" down || rc=1
  exit "$rc"
}
# In the background, because a trap waits for what runs in the foreground; in a process
# group of its own, because ginkgo does not end the processes that it has started.
run() {
  set -m
  "$@" &
  child=$!
  set +m
  wait "$child"
  child=
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
