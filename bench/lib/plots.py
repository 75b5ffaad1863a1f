"""Draws the CSV files of a benchmark: `/usr/bin/python3 plots.py
peers|scaling|network|training|training-links|convergence DIRECTORY`
(Debian's Python, for Debian's matplotlib). Each chart is written beside the file it shows."""
import collections
import csv
import math
import os
import statistics
import sys

sys.dont_write_bytecode = True

from chart import (  # noqa: E402
    Chart, megabytes_text, plain_text, share_text, size_text, time_text)

SIZE = ("size of the tensor", size_text, "log2")
DENSITY = ("share of blocks that are not zero, on each rank", share_text, "log")
RANKS = ("ranks", plain_text, "log2")
TIME = ("time of an AllReduce", time_text, "log")
TIME_AND_CPU = ("time, or CPU time of all processes", time_text, "log")


def read(path):
    """Rows with numbers where there are numbers."""
    with open(path, encoding="utf-8", newline="") as file:
        return [{key: number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def series_of(rows, x, y, by):
    """{series: [(x, y, quartile 1, quartile 3)]}, in the order in which series come. Values that
    were too small to measure have no place on a logarithmic axis."""
    series = collections.OrderedDict()
    for row in rows:
        if row[y] != "" and row[y] > 0:
            low, high = row.get(f"{y}_quartile_1", row[y]), row.get(f"{y}_quartile_3", row[y])
            series.setdefault(row[by], []).append((row[x], row[y], max(low, row[y] / 100), high))
    return {name: sorted(points) for name, points in series.items()}


def values(rows, key):
    return sorted({row[key] for row in rows})


def draw(path, title, rows, x, x_axis, panels, panel_title):
    """One panel for each value of the column `panels`, unless it has less than two x values."""
    shown = values(rows, panels)
    if len(values(rows, x)) < 2:
        return
    chart = Chart(title, len(shown))
    for i, value in enumerate(shown):
        series = series_of([row for row in rows if row[panels] == value], x, "time_us",
                           "contestant")
        chart.panel(i, panel_title(value), series, x_axis, TIME)
    chart.write(path)


def ranks_title(value):
    return f"{value:.0f} ranks"


def density_title(value):
    return f"density {share_text(value)}"


def peers(directory):
    """Time against density, against size and against ranks, of one overlap each."""
    rows = read(os.path.join(directory, "summary.csv"))
    for overlap in values(rows, "overlap"):
        some = [row for row in rows if row["overlap"] == overlap or row["density"] == 1]
        suffix = "" if overlap == "random" else f"-{overlap}"
        largest = max(values(some, "bytes"))
        at_largest = [row for row in some if row["bytes"] == largest]
        size = size_text(largest)
        draw(os.path.join(directory, "density" + suffix), f"AllReduce of {size} fp32, in place",
             at_largest, "density", DENSITY, "ranks", ranks_title)
        draw(os.path.join(directory, "ranks" + suffix), f"AllReduce of {size} fp32, in place",
             [row for row in at_largest if row["density"] in (1, 0.1, 0.01)], "ranks", RANKS,
             "density", density_title)
        draw(os.path.join(directory, "size" + suffix), "AllReduce of dense fp32, in place",
             [row for row in some if row["density"] == 1], "bytes", SIZE, "ranks", ranks_title)


def scaling(directory):
    """Time and CPU along each axis that has a file."""
    for axis, details in AXES.items():
        path = os.path.join(directory, f"scaling-{axis}.csv")
        if os.path.exists(path):
            draw_scaling(path, *details)


def draw_scaling(path, title, column, x_axis, panels, panel_title):
    rows = read(path)
    shown = values(rows, panels)
    chart = Chart(title, len(shown))
    for i, value in enumerate(shown):
        some = [{**row, "every": name} for row in rows if row[panels] == value
                for name in ("time_us", "cpu_us")]
        series = {name: series_of([row for row in some if row["every"] == name], column, name,
                                  "every")[name] for name in ("time_us", "cpu_us")}
        chart.panel(i, panel_title(value), series, x_axis, TIME_AND_CPU)
    chart.write(os.path.splitext(path)[0])


MIDDLING = "AllReduce of 16 MiB fp32 on 4 ranks"
AXES = {
    "size": ("AllReduce of dense fp32", "bytes", SIZE, "ranks", ranks_title),
    "ranks": ("AllReduce of dense fp32", "ranks", RANKS, "bytes", size_text),
    "streams": (MIDDLING, "streams", ("streams", plain_text, "log2"), "density", density_title),
    "block": (MIDDLING, "block_elements", ("elements of a block", plain_text, "log2"), "density",
              density_title),
    "frame": (MIDDLING, "mtu", ("bytes of an IP packet", plain_text, "linear"), "density",
              density_title),
}


def network(directory):
    """Time against the number of aggregators, by unicast and by multicast, a panel for each
    tensor."""
    path = os.path.join(directory, "network-multicast.csv")
    rows = read(path)
    tensors = list(dict.fromkeys(row["tensor"] for row in rows))
    chart = Chart("AllReduce of fp32 on 4 ranks over links of 200 Mbit/s", len(tensors))
    for i, tensor in enumerate(tensors):
        some = [row for row in rows if row["tensor"] == tensor]
        chart.panel(i, tensor, series_of(some, "aggregators", "time_us", "contestant"),
                    ("aggregators", plain_text, "log2"), TIME)
    chart.write(os.path.splitext(path)[0])


def training(directory):
    """Loss, time and bytes of each step, a panel for each example."""
    rows = read(os.path.join(directory, "training.csv"))
    examples = values(rows, "example")
    for column, title, y_axis in (("loss", "Loss, mean over the ranks", ("", plain_text, "linear")),
                                  ("time_us", "Time of a training step", ("", time_text, "log")),
                                  ("bytes", "Sent by all ranks in a step", ("", size_text, "log"))):
        chart = Chart(title, len(examples))
        for i, example in enumerate(examples):
            some = [row for row in rows if row["example"] == example]
            chart.panel(i, str(example).replace("_", " "),
                        series_of(some, "step", column, "contestant"),
                        ("step", plain_text, "linear"), y_axis)
        chart.write(os.path.join(directory, f"training-{column.removesuffix('_us')}"))


def training_links(directory):
    """Loss against the time of the steps up to it, a panel for each example."""
    rows = read(os.path.join(directory, "training-links.csv"))
    chart = Chart("Training over links: loss by time", len(values(rows, "example")))
    for i, example in enumerate(dict.fromkeys(row["example"] for row in rows)):
        some, spent = [row for row in rows if row["example"] == example], collections.Counter()
        for row in some:
            spent[row["contestant"]] += row["time_us"]
            row["spent_us"] = spent[row["contestant"]]
        chart.panel(i, str(example).replace("_", " "),
                    series_of(some, "spent_us", "loss", "contestant"),
                    ("time since the first step began", time_text, "log"),
                    ("loss, mean over the ranks", plain_text, "linear"))
    chart.write(os.path.join(directory, "training-links"))


ABOVE_MOST = 0.25  # of the exact loss; more is not shown


def convergence(directory):
    """The distance from the exact loss by step, and the loss by the bytes sent. Means over
    the seeds, with their range."""
    rows = read(os.path.join(directory, "convergence.csv"))
    for row in rows:
        row["above"] = row["loss"] / exact_loss(rows, row) - 1
    for row in rows:  # values far off would leave no room for the others
        if not row["above"] < ABOVE_MOST:
            row["above"] = row["loss"] = math.nan
    models = list(dict.fromkeys(row["model"] for row in rows))
    for column, x_axis, value, y_axis, title in (
            ("step", ("step", plain_text, "linear"), "above", ("", share_text, "linear"),
             "Loss above that with exact gradients"),
            ("bytes", ("sent by all ranks until then", megabytes_text, "log"), "loss",
             ("loss", plain_text, "linear"), "Loss by bytes sent")):
        chart = Chart(title, len(models))
        for i, model in enumerate(models):
            some = [row for row in rows if row["model"] == model]
            chart.panel(i, model, over_seeds(some, column, value), x_axis, y_axis)
        chart.write(os.path.join(directory, f"convergence-{column}"))


def exact_loss(rows, row):
    """The row of the same step of the run that differs only in the contestant."""
    same = ("model", "seed", "steps", "ranks", "step")
    return next(other["loss"] for other in rows if other["contestant"] == "exact"
                and all(other[key] == row[key] for key in same))


def over_seeds(rows, x, y):
    """{contestant: [(mean x, mean y, least y, most y)]}, a point for each step."""
    series = {}
    for name in dict.fromkeys(row["contestant"] for row in rows):
        by_step = collections.defaultdict(list)
        for row in rows:
            if row["contestant"] == name:
                by_step[row["step"]].append(row)
        series[name] = [
            (statistics.fmean(row[x] for row in some), statistics.fmean(row[y] for row in some),
             min(row[y] for row in some), max(row[y] for row in some))
            for some in by_step.values()]
    return series


CHARTS = {"peers": peers, "scaling": scaling, "network": network, "training": training,
          "training-links": training_links, "convergence": convergence}

if __name__ == "__main__":
    CHARTS[sys.argv[1]](sys.argv[2])
