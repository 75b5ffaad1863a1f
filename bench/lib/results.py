"""Results of rounds: medians of values and of ratios, tables and CSV files."""
import collections
import csv
import statistics
from dataclasses import asdict

import placement
import tables

BASE = "sluice"
TIME_UNITS = [("s", 1e6), ("ms", 1e3), ("us", 1)]
SIZES = [("G", 30), ("M", 20), ("K", 10), ("", 0)]


def usable(rounds):
    """The rounds that count; all if none does, which their labels then show."""
    return [r for r in rounds if r.counts] or rounds


def labels(rounds):
    """ "5 same-core, 2 same-socket"."""
    count = collections.Counter(r.label for r in rounds)
    return ", ".join(f"{count[label]} {label}" for label in [*placement.LABELS, "changed"]
                     if count[label])


def values(rounds, name):
    return [r.values[name] for r in rounds if name in r.values]


def medians(rounds):
    """The median of every value, by name."""
    names = dict.fromkeys(name for r in rounds for name in r.values)
    return {name: median(values(rounds, name)) for name in names}


def ratios(rounds, names, base=BASE):
    """Ratios of the least of `names` to the base, in each round that has all of them."""
    return [min(r.values[n] for n in names) / r.values[base] for r in rounds
            if base in r.values and all(n in r.values for n in names)]


def median(numbers):
    """None if there is nothing."""
    return statistics.median(numbers) if numbers else None


def quartiles(numbers):
    if len(numbers) < 2:
        return (numbers[0], numbers[0]) if numbers else (None, None)
    first, _, third = statistics.quantiles(numbers, n=4, method="inclusive")
    return first, third


def by_point(rounds):
    """Rounds of each point, in the order of the points."""
    groups = {}
    for r in rounds:
        groups.setdefault(r.point, []).append(r)
    return groups


def summary(rounds, base=BASE):
    """A row for each point and contestant."""
    for point, all_rounds in by_point(rounds).items():
        counted = usable(all_rounds)
        names = dict.fromkeys(name for r in counted for name in r.values)
        for name in sorted(names, key=lambda n: n != base):
            yield summary_row(point, name, counted, all_rounds, base)


def summary_row(point, name, counted, all_rounds, base):
    own, against = values(counted, name), ratios(counted, [name], base)
    low, high = quartiles(own)
    least, most = quartiles(against)
    return {**asdict(point), "contestant": name, "time_us": median(own), "time_us_quartile_1": low,
            "time_us_quartile_3": high, "ratio": median(against), "ratio_quartile_1": least,
            "ratio_quartile_3": most, "rounds": len(own),
            "placement": labels(counted), "dropped": len(all_rounds) - len(counted)}


def raw_rows(rounds):
    for r in rounds:
        for name, value in r.values.items():
            yield {**asdict(r.point), "round": r.number, "contestant": name, "value": value,
                   "label": r.label, "core_distance_ns": max(r.distances_ns)}


def write_csv(path, rows):
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def parse_size(text):
    """Bytes, of a number with K, M, G or none (2^10, 2^20, 2^30)."""
    for suffix, shift in SIZES[:-1]:
        if text.upper().endswith(suffix):
            return int(text[:-1]) << shift
    return int(text)


def size_name(size):
    """The inverse of parse_size, with the largest suffix that gives a whole number."""
    suffix, shift = next((s, n) for s, n in SIZES if size % (1 << n) == 0 and (size or n == 0))
    return f"{size >> shift}{suffix}"


def time_name(microseconds):
    """Three digits, in a suitable unit; empty for None."""
    if microseconds is None:
        return ""
    unit, scale = next((u, s) for u, s in TIME_UNITS if microseconds >= s or s == 1)
    value = microseconds / scale
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"


def comparison(rounds, names, base=BASE):
    """A table of times; in brackets their ratio to the base's."""
    table = []
    for point, all_rounds in by_point(rounds).items():
        counted = usable(all_rounds)
        cells = [comparison_cell(counted, name, base) for name in names]
        dropped = len(all_rounds) - len(counted)
        rounds_cell = labels(counted) + (f"; {dropped} dropped" if dropped else "")
        table.append([point.ranks, size_name(point.bytes), f"{point.density:g}", point.overlap,
                      *cells, rounds_cell])
    return tables.markdown(["ranks", "size", "density", "overlap", *names, "rounds"], table)


def comparison_cell(counted, name, base):
    time, ratio = median(values(counted, name)), median(ratios(counted, [name], base))
    if time is None:
        return "-"
    return time_name(time) if name == base or ratio is None else f"{time_name(time)} ({ratio:.2f}x)"
