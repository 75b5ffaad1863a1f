# Building and running the fuzz targets. Needs common.sh.

# Clang's sanitized build, in which the fuzz targets are.
sanitized_dir=build-sanitized
sanitized="-Dfuzz=true -Db_sanitize=address,undefined -Doptimization=1"
mapfile -t fuzz_targets < <(ls tests/fuzz/corpus)

# number_after WORD LINE: the number that follows "WORD ".
number_after() { sed -nE "s|.*$1:? +([0-9]+).*|\1|p" <<<"$2"; }

# fuzz_for SECONDS TARGET: runs it and says what came of it. False if an input failed.
fuzz_for() {
  local seconds=$1 target=$2 status=0
  local fuzzer=$sanitized_dir/tests/fuzz/fuzz-$target found=$sanitized_dir/corpus/$target
  local log=$sanitized_dir/$target.log failing=$sanitized_dir/findings/$target-
  mkdir -p "$found" "$sanitized_dir/findings"
  "$fuzzer" "-max_total_time=$seconds" -max_len=1024 -timeout=20 -print_final_stats=1 \
    "-artifact_prefix=$failing" "$found" "tests/fuzz/corpus/$target" >"$log" 2>&1 || status=$?

  local first last
  first=$(grep -m1 INITED "$log" || true)
  last=$(grep -E '^#[0-9]+' "$log" | tail -n 1)
  say "$target: $(number_after '^#' "${last/#\#/\# }") executions," \
    "$(number_after exec/s "$last")/s, coverage $(number_after cov "$last")" \
    "(at first $(number_after cov "$first")), $(grep -c ' NEW ' "$log") new inputs"
  ((status)) || return 0

  local input
  input=$(sed -nE 's/.*Test unit written to (.*)/\1/p' "$log" | tail -n 1)
  say "$target FAILED ($(grep -m1 -E 'what\(\)|ERROR|runtime error' "$log" | xargs -0)):" \
    "see $log; to replay: $fuzzer ${input:-(no input was written)}"
  return 1
}

# merge_corpus TARGET: of what was committed and what was found, keeps the fewest inputs that reach
# every edge.
merge_corpus() {
  local target=$1
  local kept=tests/fuzz/corpus/$1 merged
  merged=$(mktemp -d)
  "$sanitized_dir/tests/fuzz/fuzz-$target" -merge=1 -use_counters=0 "$merged" "$kept" \
    "$sanitized_dir/corpus/$target" >>"$sanitized_dir/$target.log" 2>&1
  rm -rf "$kept"
  cp -r "$merged" "$kept"
  chmod 755 "$kept"
  rm -rf "$merged"
  say "$target: $(find "$kept" -type f | wc -l) inputs, $(du -bs "$kept" | cut -f1) bytes"
}
