#!/bin/bash
# local-cluster gives every rank its number, passes output on by rank, and exits as the ranks do.
source "$(dirname "$0")/local_cluster_lib.sh"

# shellcheck disable=SC2016  # for the ranks' shell to expand
whoami='echo "$SLUICE_RANK of $SLUICE_WORLD_SIZE"; echo "trouble" >&2; printf "no newline"'
run_cluster --workers 2 -- sh -c "$whoami"
check "ranks that end with 0 make 0" status_is 0
check "each line says whose it is" output_is "[0] 0 of 2" "[0] no newline" "[1] 1 of 2" \
  "[1] no newline"
check "errors are passed on as errors" says "[1] trouble"
check_nothing_left "a run that went well"

session=(cut -d " " -f 6 /proc/self/stat) # a bare Debian has no ps
run_cluster --workers 1 -- "${session[@]}"
check "ranks are of our session, where yielding a core helps the daemon" \
  output_is "[0] $("${session[@]}")"

# shellcheck disable=SC2016
for_torch='echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $((MASTER_PORT > 0))"'
MASTER_ADDR=elsewhere RANK=7 run_cluster --workers 2 -- sh -c "$for_torch"
check "ranks find what PyTorch asks for, as from torchrun" \
  output_is "[0] 0 0 2 2 127.0.0.1 1" "[1] 1 1 2 2 127.0.0.1 1"

run_cluster --workers 40 --aggregators 2 -- true
check "more ranks than a daemon has local ports for are refused" status_is 2
check "and it is said what serves them" says "more ranks need --transport af_packet"

run_cluster --workers 2 --only-rank 1 -- sh -c "$whoami"
check "--only-rank shows that rank, bare" output_is "1 of 2" "no newline"
run_cluster --workers 2 --quiet-ranks -- sh -c "$whoami"
check "--quiet-ranks shows none" test ! -s "$place/out"

# shellcheck disable=SC2016
run_cluster --workers 1 --aggregators 2 -- sh -c '
  for address in $(echo "$SLUICE_AGGREGATORS" | tr "," " "); do
    directory=${address#vhost:}
    stat -c %a "$directory"
    [ ${#directory} -lt 80 ] || echo "too long for a socket: $directory"
  done'
check "each aggregator has a directory for its owner only, at a short path" \
  output_is "[0] 700" "[0] 700"

# shellcheck disable=SC2016
run_cluster --workers 3 -- sh -c '[ "$SLUICE_RANK" != 1 ] || exit 7; exec sleep 1000'
check "the first failure's status is the cluster's" status_is 7
check "the failed rank is named" says "rank 1 ended with status 7"
check_nothing_left "a failed rank"

# shellcheck disable=SC2016
run_cluster --workers 2 -- sh -c '[ "$SLUICE_RANK" != 0 ] || kill -KILL $$; exec sleep 1000'
check "a rank that was killed makes 128 + 9" status_is 137

lossy=$build/tests/system/libloses_a_buffer.so
run_cluster --workers 2 -- \
  sh -c "[ \$SLUICE_RANK = 0 ] || export LD_PRELOAD=$lossy; exec '$build/examples/first-program'"
check "a rank that loses a packet buffer fails the run" status_is 1
check "it is named" says "rank 1 has lost packet buffers"
LD_PRELOAD=$lossy run_cluster --workers 1 -- true
check "an aggregator that loses a packet buffer fails the run" status_is 1
check "that one is named, too" says "aggregator 0 ended with status 1"
check_nothing_left "lost buffers"

run_cluster --workers 2 -- no-such-program
check "an unknown program is refused" status_is 2
run_cluster --workers 257 -- true
check "too many workers are refused" says "'257' is not a whole number from 1 to 256"
run_cluster --transport af_xdp --mtu 9000 -- true
check "frames too large for af_xdp are refused with the bound" says "at most 2798"
run_cluster --rate 100 -- true
check "a rate without a link is refused" says "--rate needs --transport af_packet"
run_cluster --aggregator-arg=--no-such-setting -- true
check "an aggregator that does not start fails the run" status_is 1
check "what it said is shown" says "no-such-setting"
check_nothing_left "refusals"
finish
