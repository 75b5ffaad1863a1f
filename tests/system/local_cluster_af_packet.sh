#!/bin/bash
# Over af_packet every rank and aggregator is a host of its own, whose link has the MTU and the rate
# asked for, and the machine's own network is left alone.
source "$(dirname "$0")/local_cluster_lib.sh"

if ((EUID != 0)); then
  run_cluster --transport af_packet -- true
  check "without privilege it is refused with the reason" says "which only root may"
  ((checks_failed)) && finish
  echo "skipped: local_cluster_af_packet: needs root"
  exit 77
fi

# shellcheck disable=SC2016  # for the ranks' shell to expand
run_cluster --workers 2 --aggregators 2 --transport af_packet --mtu 3000 --rate 50 -- bash -c '
  echo "mtu $SLUICE_MTU $(ip -o link show port0 | grep -o "mtu [0-9]*")"
  echo "$SLUICE_ADDRESS $SLUICE_AGGREGATORS"
  tc qdisc show dev port0 | grep -o "tbf\|rate 50Mbit" | tr "\n" " "
  [[ $SLUICE_PORT == net_af_packet*,iface=port0* ]] || echo "port $SLUICE_PORT"
  ip -o -4 address | grep port0'
check "the run ends well" status_is 1 # of grep: the kernel knows no address on port0
check "each host has its address, MTU and rate" output_is \
  "[0] mtu 3000 mtu 3000" "[0] 10.77.1.1/16 10.77.0.1:4747,10.77.0.2:4747" "[0] tbf rate 50Mbit " \
  "[1] mtu 3000 mtu 3000" "[1] 10.77.1.2/16 10.77.0.1:4747,10.77.0.2:4747" "[1] tbf rate 50Mbit "
check_nothing_left "a run over af_packet"

# shellcheck disable=SC2016
reach_each_other='
  ip address add "$SLUICE_ADDRESS" dev port0
  : >"$NOTES/started.$SLUICE_RANK"
  until [ -e "$NOTES/started.0" ] && [ -e "$NOTES/started.1" ]; do sleep 0.05; done
  python3 - "$SLUICE_RANK" <<"END"
import socket, sys
rank = int(sys.argv[1])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((f"10.77.1.{rank + 1}", 9))
s.settimeout(0.1)
peer = (f"10.77.1.{2 - rank}", 9)
say = b"here"  # until a datagram of the peer comes
for attempt in range(300):
    s.sendto(say, peer)
    try:
        heard = s.recv(100)
    except TimeoutError:
        continue
    if heard == b"heard you":  # it may only wait for the same answer
        s.sendto(b"heard you", peer)
        sys.exit(0)
    say = b"heard you"
sys.exit(1)
END'
rm -f "$NOTES"/*
run_cluster --workers 2 --transport af_packet -- bash -c "$reach_each_other"
check "hosts reach each other through the switch" status_is 0

# in_namespace NAMESPACE PID...: those of the processes that are in it.
in_namespace() {
  local namespace=$1 pid
  shift
  for pid in "$@"; do
    [[ $(readlink "/proc/$pid/ns/net") != "$namespace" ]] || echo "$pid"
  done
}

start_cluster 2 --transport af_packet -- bash -c "$stubborn"
namespace=$(readlink "/proc/$(pgrep -P "$guard")/ns/net")
all=(/proc/[0-9]*)
mapfile -t inside < <(in_namespace "$namespace" "${all[@]#/proc/}")
check "the switch has a namespace" test "${#inside[@]}" -gt 0
kill -KILL "$guard"
wait "$guard"
check_nothing_left "SIGKILL over af_packet"
# Those alone that were in it: the kernel gives its number to the next namespace, perhaps another
# test's.
check "the switch's namespace is gone" test -z "$(in_namespace "$namespace" "${inside[@]}")"
finish
