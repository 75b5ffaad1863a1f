"""What all parts of the model share: times, errors, packets, and the sum of two values."""
import argparse

NONE = 1 << 60  # "no further block or key"; larger than any index, so min() works
INF = float("inf")
# Times are in units of a one-way delay.
RTO, RTO_CAP, JOIN_RTO = 6.0, 48.0, 10.0
T_KEEPALIVE, T_DEAD, T_FORM, T_SILENT, TICK = 60.0, 1200.0, 2000.0, 4500.0, 3.0
T_BEACON = 6.0  # the least time between two BEACONs: longer than most round trips


class Bug(Exception):
    """A check failed."""


class Crash(Exception):
    """The aggregator ends at this very send."""


class Packet(argparse.Namespace):
    """Its `kind`, and the fields of that kind."""


def add(a, b):
    """A value is an int, which finds lost, doubled and foreign contributions, and a float, which
    finds sums that are not in the order of the ranks."""
    return ((a[0] + b[0]) & (2**64 - 1), a[1] + b[1])
