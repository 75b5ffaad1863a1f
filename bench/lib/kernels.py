"""The numbers of bench-kernels."""
import json
import subprocess

import programs
import results

REPETITIONS = 7


def run(pattern=".", repetitions=REPETITIONS):
    """{name: [GB/s of each repetition]}, the repetitions of all kernels mixed at random."""
    command = [programs.built("bench-kernels"), f"--benchmark_filter={pattern}",
               "--benchmark_format=json", f"--benchmark_repetitions={repetitions}",
               "--benchmark_min_time=0.05",
               "--benchmark_enable_random_interleaving=true"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return parse(json.loads(output))


def parse(report):
    found = {}
    for row in report["benchmarks"]:
        if row["run_type"] == "iteration":
            found.setdefault(row["run_name"], []).append(
                (row["repetition_index"], row["bytes_per_second"] / 1e9))
    return {name: [rate for _, rate in sorted(rates)] for name, rates in found.items()}


def rates():
    """Medians of all kernels, by name."""
    return {name: results.median(rates) for name, rates in sorted(run().items())}
