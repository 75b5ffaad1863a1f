# The parts of a night's run, which take too long for every commit. Needs all other files of this
# directory.

# One part a line: name | most minutes | command. A part's result, and how it ended, are kept in
# build/night until another commit is tested.
night_parts=(
  "seeds-1             | 20 | scripts/sim --seeds 25000 --from fresh"
  "seeds-2             | 20 | scripts/sim --seeds 25000 --from fresh"
  "seeds-3             | 20 | scripts/sim --seeds 25000 --from fresh"
  "seeds-4             | 20 | scripts/sim --seeds 25000 --from fresh"
  "mutations           | 30 | scripts/mutations"
  "fuzz-packet         | 15 | scripts/fuzz --minutes 10 --target packet"
  "fuzz-aggregator     | 15 | scripts/fuzz --minutes 10 --target aggregator_engine"
  "fuzz-hostile-member | 15 | scripts/fuzz --minutes 10 --target hostile_member"
  "fuzz-worker         | 15 | scripts/fuzz --minutes 10 --target worker_engine"
  "fuzz-join           | 15 | scripts/fuzz --minutes 10 --target join_handshake"
  "fuzz-host-peer      | 15 | scripts/fuzz --minutes 10 --target host_peer"
  "fuzz-settings       | 15 | scripts/fuzz --minutes 10 --target settings"
  "soak                | 40 | scripts/soak --kills 1000 --seconds 2100"
  "packages            | 45 | meson test -C build --no-rebuild --print-errorlogs packages_serve"
  "pip                 | 20 | meson test -C build --no-rebuild --print-errorlogs pip_installs"
  "torch-conformance   | 40 | scripts/torch-conformance"
  "mpi-conformance     | 30 | scripts/mpi-conformance"
  "emulated-nics       | 30 | scripts/emulated-nics"
  "debian-13           | 60 | scripts/in-debian 13 ./scripts/test --torch"
  "torch-2-conformance | 40 | scripts/in-debian 13 ./scripts/torch-conformance"
)
night_dir=build/night

night_names() { sed 's/ *|.*//' < <(printf '%s\n' "${night_parts[@]}") | tr '\n' ' '; }

# The commit, and what was changed since then.
night_commit() {
  git rev-parse HEAD 2>/dev/null || say "no commit"
  git diff HEAD 2>/dev/null | sha256sum
}

# night_part NAME MINUTES COMMAND...: its result is one word in build/night/NAME.
night_part() {
  local name=$1 minutes=$2 result=failed
  shift 2
  if logged "$night_dir/$name.log" "$name (at most $minutes minutes)" \
    timeout --kill-after 30 $((minutes * 60)) "$@"; then
    result=passed
  fi
  say "$result" >"$night_dir/$name.result"
}

run_night() {
  install_packages "${build_packages[@]}" "${test_packages[@]}" "${mpi_program_packages[@]}" \
    "${package_packages[@]}" "${wheel_packages[@]}"
  mkdir -p "$night_dir"
  if [[ $night_fresh == yes || $(night_commit) != "$(cat "$night_dir/commit" 2>/dev/null)" ]]; then
    rm -f "$night_dir"/*.result "$night_dir"/*.log
    night_commit >"$night_dir/commit"
  fi
  build_tree build g++ "$to_use" || { failed=1; return; }
  build_tree "$sanitized_dir" clang++ "$sanitized" fuzz || { failed=1; return; }
  local part name minutes command left=0 ran=0 from=$SECONDS
  for part in "${night_parts[@]}"; do
    IFS='|' read -r name minutes command <<<"$part"
    read -r name minutes <<<"$name $minutes"
    if [[ ! -f $night_dir/$name.result ]]; then
      if ((ran && SECONDS - from + minutes * 60 > night_minutes * 60)); then
        left=$((left + 1))
        continue
      fi
      ran=$((ran + 1))
      # shellcheck disable=SC2086  # the command is words
      night_part "$name" "$minutes" $command
    fi
    if [[ $(<"$night_dir/$name.result") == passed ]]; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
      say "$name failed: see $night_dir/$name.log"
    fi
  done
  if ((left)); then say "$left of ${#night_parts[@]} parts are left: run it again for these"; fi
}
