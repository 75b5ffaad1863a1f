#!/bin/bash
# The trainer's own check: right training passes, and each kind of error is noticed. The
# input is real: the records of the packages installed on this machine.
source "$(dirname "$0")/local_cluster_lib.sh"

train() { # train ARGS...: as each rank's shell expands them
  run_cluster --workers 3 --grace 60 -- \
    bash -c "exec '$build/examples/section-trainer' --input /var/lib/dpkg/status $*"
}

answers() { grep -qE -- "$1" "$place/out" || { cat "$place/out" "$place/err"; return 1; }; }

short="--epochs 4 --batch 128"
train "$short"
check "right training ends with 0" status_is 0
check "ranks agree" answers '^\[0\] all 3 ranks hold bit-identical weights: yes'
check "they match the process that adds in rank order" answers 'adds in rank order: yes'
check "they match the process that takes whole batches" answers 'takes whole batches: yes'

# shellcheck disable=SC2016  # for the ranks' shell to expand
train "$short"' --learning-rate $((50 + SLUICE_RANK))'
check "a rank that steps differently fails the run" status_is 1
check "the ranks' difference is told" answers 'hold bit-identical weights: NO'

# shellcheck disable=SC2016
train "$short"' --seed $((1 + (SLUICE_RANK + 1) / 2))'
check "a rank that trains on other records fails the run" status_is 1
check "the ranks agree all the same" answers 'hold bit-identical weights: yes'
check "the difference from one process is told" answers 'adds in rank order: NO'

train "$short --min-accuracy 1"
check "an accuracy below the one asked for fails the run" status_is 1
train "--epochs 0"
check "a setting out of range is named with its range" says "--epochs is 0; allowed are 1 to 1000"
finish
