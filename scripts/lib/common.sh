# What every script needs: paths, and functions for output. Sourced by bash.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

say() { printf '%s\n' "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# logged LOG WHAT COMMAND...: runs COMMAND with its output in LOG; prints WHAT and the time it took,
# and on failure the end of the output.
logged() {
  local log=$1 what=$2 from=$SECONDS before
  shift 2
  mkdir -p "$(dirname "$log")"
  touch "$log"
  before=$(wc -l <"$log")
  printf '%s ... ' "$what"
  if "$@" >>"$log" 2>&1 </dev/null; then
    say "done ($((SECONDS - from)) s)"
  else
    say "FAILED; the end of $log:"
    tail -n +"$((before + 1))" "$log" | tail -n 60
    return 1
  fi
}
