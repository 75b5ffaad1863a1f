"""first_program.cpp in Python: README.md tells how to run it."""
import sluice
import numpy as np

with sluice.Context() as context, context.join() as job:
    gradients = np.zeros(1_000_000, np.float32)  # zero but for one element
    gradients[42] = job.rank + 1
    work = job.all_reduce(gradients)
    work.wait()
    print(f"the ranks' sum is {gradients[42]:g}; this one sent {work.statistics.bytes_sent} bytes"
          f" of {gradients.nbytes}")
