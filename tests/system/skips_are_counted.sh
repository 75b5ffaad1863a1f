#!/bin/bash
# scripts/test counts and prints every part of a test that was not run, not only whole tests, and
# keeps what a failed test printed last.
source "$(dirname "$0")/../../scripts/lib/common.sh"
source scripts/lib/tests.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cat >"$log" <<'END'
{"name": "whole", "stdout": "fine\n", "result": "OK"}
{"name": "partly", "stdout": "\nskipped: B.c: needs \"root\"\nskipped: D: cores\n", "result": "OK"}
{"name": "not at all", "stdout": "skipped: F.g: needs root\n", "result": "SKIP"}
{"name": "says no reason", "stdout": "", "result": "SKIP"}
{"name": "wrong", "stdout": "the \"result\": \"OK\" was expected\n", "result": "FAIL"}
END
said=$(count_results "$log")
count_results "$log" >/dev/null
expected='partly: skipped: B.c: needs "root"
partly: skipped: D: cores
not at all: skipped: F.g: needs root'
if [[ $said != "$expected" || "$passed $failed $skipped" != "2 1 4" ]]; then
  printf '%s\n' "$said" "$passed passed, $failed failed, $skipped skipped"
  exit 1
fi
said=$(ends_of_failed "$log")
expected='--- wrong: FAIL
the "result": "OK" was expected'
if [[ $said != "$expected" ]]; then
  printf '%s\n' "$said"
  exit 1
fi
