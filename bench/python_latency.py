#!/usr/bin/env python3
"""What the Python package adds to a small op: the median time of an AllReduce of 8 bytes.

  scripts/local-cluster --workers 1 -- python3 bench/python_latency.py
  scripts/local-cluster --workers 1 -- sluice-perf -b 8 -e 8 -n 5000 -c 0 --in-place 1
"""
import statistics
import time

import numpy as np
import sluice

WARM_UP, TIMED = 2_000, 10_000

with sluice.Context() as context, context.join() as job:
    array = np.ones(2, np.float32)
    times = []
    for _ in range(WARM_UP + TIMED):
        begin = time.perf_counter_ns()
        job.all_reduce(array).wait()
        times.append(time.perf_counter_ns() - begin)
    if job.rank == 0:
        print(f"{statistics.median(times[WARM_UP:]) / 1000:.1f} us")
