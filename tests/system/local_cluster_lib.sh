# For tests of scripts/local-cluster: runs it in a directory of its own, and checks that nothing is
# left. Sourced by bash with the build directory as first argument of the test.
set -uo pipefail

build=$(realpath "${1:?usage: $0 BUILD_DIRECTORY}")
cluster=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../scripts/local-cluster")
# The cluster's own directory appears in $place/run; $place/notes is for the ranks to write to.
place=$(mktemp -d /tmp/sluice-test-XXXXXX)
mkdir -m 0700 "$place/run" "$place/notes"
export XDG_RUNTIME_DIR=$place/run NOTES=$place/notes
trap 'kill_marked; rm -rf "$place"' EXIT
links_before=$(ls /sys/class/net)
checks_failed=0

check() { # check WHAT COMMAND...
  local what=$1
  shift
  if "$@"; then
    echo "ok: $what"
  else
    echo "FAILED: $what"
    checks_failed=$((checks_failed + 1))
  fi
}

finish() { exit $((checks_failed > 0)); }

wait_until() { # wait_until SECONDS COMMAND...: false when COMMAND stays false for so long
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.05
  done
}

# Ids of the processes that the clusters of this test started, however indirectly: their
# environment carries its mark.
marked_processes() {
  grep -lzxF "TEST_MARK=$place" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3
}

kill_marked() {
  local pid
  for pid in $(marked_processes); do kill -KILL "$pid" 2>/dev/null; done
}

run_cluster() { # run_cluster ARGS...: output in $place/out and $place/err, status in $status
  TEST_MARK=$place "$cluster" --build "$build" "$@" >"$place/out" 2>"$place/err" </dev/null
  status=$?
}

start_cluster() { # start_cluster WORKERS ARGS...: returns once every rank wrote its note
  local workers=$1
  shift
  rm -f "$NOTES"/*
  TEST_MARK=$place "$cluster" --build "$build" --workers "$workers" "$@" \
    >"$place/out" 2>"$place/err" </dev/null &
  guard=$!
  wait_until 60 all_started "$workers" || { cat "$place/err"; return 1; }
}

all_started() { [[ $(find "$NOTES" -name 'started.*' | wc -l) == "$1" ]]; }

# A program that is hard to end: it ignores SIGTERM and has a child in another session.
# shellcheck disable=SC2016  # for the rank's shell to expand
stubborn='trap "" TERM; setsid sleep 1000 & : >"$NOTES/started.$SLUICE_RANK"
  while :; do sleep 1; done'
# shellcheck disable=SC2016
waiting='sleep 1000 & : >"$NOTES/started.$SLUICE_RANK"; wait'

no_process_left() { [[ -z $(marked_processes) ]]; }
no_file_left() { [[ -z $(ls -A "$place/run") ]]; }
no_link_left() { [[ $(ls /sys/class/net) == "$links_before" ]]; }

check_nothing_left() { # check_nothing_left AFTER_WHAT
  check "no process is left after $1" wait_until 30 no_process_left
  check "no file or socket is left after $1" wait_until 30 no_file_left
  # These may belong to this test, or to another one that runs meanwhile.
  check "no network interface is left after $1" wait_until 30 no_link_left
}

status_is() {
  [[ $status == "$1" ]] || { echo "status $status"; cat "$place/err"; return 1; }
}
output_is() { diff <(sort "$place/out") <(printf '%s\n' "$@" | sort); }
says() { grep -qF -- "$1" "$place/err" || { cat "$place/err"; return 1; }; }
