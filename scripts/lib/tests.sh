# Running the tests of one build directory and counting what came of them. Needs common.sh.

passed=0 failed=0 skipped=0

# count_results LOG: adds up a meson test log, which has one line of JSON per test.
count_results() {
  local result
  while read -r result; do
    case $result in
      OK | EXPECTEDFAIL) passed=$((passed + 1)) ;;
      SKIP) skipped=$((skipped + 1)) ;;
      *) failed=$((failed + 1)) ;;
    esac
  done < <(sed -nE 's/.*[^\\]"result": "([A-Z]+)".*/\1/p' "$1")
}

# run_tests DIR SUITE...: logs of failed tests are printed by meson. A run that fails without a
# failed test (nothing could be built, or meson broke) counts as one failure.
run_tests() {
  local dir=$1 log=$1/meson-logs/testlog.json suite status=0 failed_before=$failed
  shift
  rm -f "$log"
  local selection=()
  for suite in "$@"; do selection+=(--suite "$suite"); done
  # Each test's limit is that of a free machine; a busy one may need several times as long.
  meson test -C "$dir" --no-rebuild --print-errorlogs --timeout-multiplier 4 "${selection[@]}" \
    </dev/null || status=$?
  [[ ! -f $log ]] || count_results "$log"
  if ((status != 0 && failed == failed_before)); then failed=$((failed + 1)); fi
}
