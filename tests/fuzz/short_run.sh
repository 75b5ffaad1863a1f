#!/bin/bash
# A short run of a fuzzer that goes the same way each time: FUZZER CORPUS RUNS. Beginning with the
# corpus, it tries RUNS inputs and keeps none but one that fails, in the current directory.
set -euo pipefail
inputs=$(find "$2" -type f | sort | paste -sd,)
exec "$1" -seed=1 -runs="$3" -max_len=1024 -timeout=20 -print_final_stats=1 -seed_inputs="$inputs"
