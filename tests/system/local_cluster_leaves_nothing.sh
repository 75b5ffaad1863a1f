#!/bin/bash
# However local-cluster ends, no process, socket, file or interface outlives it.
source "$(dirname "$0")/local_cluster_lib.sh"

interrupt() { # interrupt SIGNAL PROGRAM: sets $status
  start_cluster 2 --aggregators 2 -- bash -c "$2"
  kill "-$1" "$guard"
  wait "$guard"
  status=$?
}

interrupt INT "$waiting"
check "SIGINT makes 130" status_is 130
check_nothing_left "SIGINT"

interrupt TERM "$stubborn"
check "SIGTERM makes 143, also when ranks ignore it" status_is 143
check_nothing_left "SIGTERM"

interrupt KILL "$stubborn"
check_nothing_left "SIGKILL of the script"

start_cluster 2 -- bash -c "$stubborn"
kill -KILL "$(pgrep -P "$guard")"
wait "$guard"
status=$?
check "SIGKILL of the script's inner process makes 137" status_is 137
check_nothing_left "SIGKILL of the script's inner process"

start_cluster 2 --grace 0 -- bash -c "$waiting"
kill -KILL "$(pgrep -P "$(pgrep -P "$guard")" -f sluice-aggregator)"
wait "$guard"
status=$?
check "a killed aggregator fails the run" status_is 1
check "it is named" says "aggregator 0 ended early, with status 137"
check_nothing_left "SIGKILL of an aggregator"
finish
