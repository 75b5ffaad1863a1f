# Building and running the fuzz targets. Needs common.sh, build.sh and corpus.sh.

# Clang's sanitized build, in which the fuzz targets are.
sanitized_dir=build-sanitized
sanitized="-Dfuzz=true -Db_sanitize=address,undefined -Doptimization=1 $many_as_one"
mapfile -t fuzz_targets < <(basename -s .tar.gz tests/fuzz/corpus/*)

# number_after WORD LINE: the number that follows "WORD ".
number_after() { sed -nE "s|.*$1:? +([0-9]+).*|\1|p" <<<"$2"; }

# corpus_of TARGET: where the build has unpacked its archive.
corpus_of() { printf '%s\n' "$sanitized_dir/tests/fuzz/corpus-$1"; }

# fuzz_for SECONDS TARGET: runs it and prints the result. Fails if an input failed.
fuzz_for() {
  local seconds=$1 target=$2 status=0
  local fuzzer=$sanitized_dir/tests/fuzz/fuzz-$target found=$sanitized_dir/corpus/$target
  local log=$sanitized_dir/$target.log failing=$sanitized_dir/findings/$target-
  mkdir -p "$found" "$sanitized_dir/findings"
  "$fuzzer" "-max_total_time=$seconds" -max_len=1024 -timeout=20 -print_final_stats=1 \
    "-artifact_prefix=$failing" "$found" "$(corpus_of "$target")" >"$log" 2>&1 || status=$?

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

# merge_corpus TARGET: keeps the fewest inputs, of those committed and those found, that reach
# every edge.
merge_corpus() {
  local target=$1 archive=tests/fuzz/corpus/$1.tar.gz merged
  merged=$(mktemp -d)
  "$sanitized_dir/tests/fuzz/fuzz-$target" -merge=1 -use_counters=0 "$merged" \
    "$(corpus_of "$target")" "$sanitized_dir/corpus/$target" >>"$sanitized_dir/$target.log" 2>&1
  pack_corpus "$merged" "$archive"
  say "$target: $(find "$merged" -type f | wc -l) inputs," \
    "an archive of $(stat -c %s "$archive") bytes"
  rm -rf "$merged"
}
