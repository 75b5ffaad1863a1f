# Runs the tests of one build directory and counts the results. Needs common.sh.

passed=0 failed=0 skipped=0
failures="" # what the failed tests printed last, to be shown again at the end

# count_results LOG: adds up a meson test log, which has one line of JSON per test. A test prints a
# line "skipped: WHICH: WHY" for each part that it does not run; such a line is printed and counts.
count_results() {
  local result parts part
  while read -r result parts; do
    case $result in
      OK | EXPECTEDFAIL) passed=$((passed + 1)) ;;
      SKIP) if ((parts == 0)); then skipped=$((skipped + 1)); fi ;;
      *) failed=$((failed + 1)) ;;
    esac
    skipped=$((skipped + parts))
    for ((; parts > 0; --parts)); do
      read -r part
      say "$part"
    done
  done < <(python3 -c '
import json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    test = json.loads(line)
    parts = [p for p in test.get("stdout", "").splitlines() if p.startswith("skipped: ")]
    print(test["result"], len(parts))
    for part in parts:
        print(test["name"] + ": " + part)' "$1")
}

# ends_of_failed LOG: the last lines that each failed test of a meson test log printed.
ends_of_failed() {
  python3 -c '
import json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    test = json.loads(line)
    if test["result"] in ("OK", "EXPECTEDFAIL", "SKIP"):
        continue
    print("---", test["name"] + ":", test["result"])
    for stream in ("stdout", "stderr"):
        for last in test.get(stream, "").splitlines()[-20:]:
            print(last)' "$1"
}

# run_tests DIR SUITE...: logs of failed tests are printed by meson. A run that fails without a
# failed test (nothing could be built, or meson broke) counts as one failure.
run_tests() {
  local dir=$1 log=$1/meson-logs/testlog.json suite status=0 failed_before=$failed ends
  shift
  rm -f "$log"
  local selection=()
  for suite in "$@"; do selection+=(--suite "$suite"); done
  # Tests wait for each other's processes most of the time: two for each core. Each one's limit is
  # that of a free machine; a busy one may need several times as long.
  TESTS_RECORDED=$(mktemp -d)
  export TESTS_RECORDED
  meson test -C "$dir" --no-rebuild --print-errorlogs --timeout-multiplier 4 \
    --num-processes $((2 * $(nproc))) "${selection[@]}" </dev/null || status=$?
  rm -rf "$TESTS_RECORDED"
  if [[ -f $log ]]; then
    count_results "$log"
    ends=$(ends_of_failed "$log")
    [[ -z $ends ]] || failures+=$ends$'\n'
  fi
  if ((status != 0 && failed == failed_before)); then failed=$((failed + 1)); fi
}
