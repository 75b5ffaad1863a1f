"""Charts: panels side by side with one legend, as PNG. Needs Debian's matplotlib."""
import collections

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

# Colours that stay apart for colour-blind readers (Okabe and Ito); Sluice is drawn boldest.
STYLES = {
    "sluice": ("Sluice", "#0072B2", "o", "-"),
    "sluice-bitmap": ("Sluice, bitmap given", "#56B4E9", "o", "--"),
    "openmpi": ("Open MPI, shared memory", "#D55E00", "s", "-"),
    "openmpi-tcp": ("Open MPI, TCP", "#E69F00", "s", "--"),
    "gloo": ("PyTorch Gloo", "#009E73", "^", "-"),
    "ring": ("ring over MPI", "#CC79A7", "D", "-"),
    "sparse-mpi": ("sparse AllGather over MPI", "#000000", "v", "-"),
    "sparse-gloo": ("sparse AllGather, Gloo", "#8C8C8C", "v", "--"),
    "sluice-top-k": ("Sluice, 8% of blocks, as bfloat16", "#56B4E9", "o", "--"),
    "unicast": ("results by unicast", "#D55E00", "s", "-"),
    "unicast, bound": ("what the links allow by unicast", "#D55E00", "", "--"),
    "multicast": ("results by multicast", "#0072B2", "o", "-"),
    "multicast, bound": ("what the links allow by multicast", "#0072B2", "", "--"),
    "time_us": ("time", "#0072B2", "o", "-"),
    "cpu_us": ("CPU time of all processes", "#D55E00", "s", "-"),
}
BOLD = ("sluice", "multicast", "time_us")
SPARE_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
WIDTH, HEIGHT = 5.2, 4.2  # inches of one panel


def style(name, number=0):
    """Label, colour, marker and line of a contestant, or of a series of that number."""
    colour, again = SPARE_COLOURS[number % len(SPARE_COLOURS)], number >= len(SPARE_COLOURS)
    return STYLES.get(name) or (name, colour, "s" if again else "o", "--" if again else "-")


def size_text(size, _=None):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.3g} {unit}"
    return f"{size:.3g} B"


def megabytes_text(size, _=None):
    return f"{size / 1e6:.4g} MB"


def time_text(microseconds, _=None):
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= scale:
            return f"{microseconds / scale:.4g} {unit}"
    return f"{microseconds:.3g} µs"


def share_text(density, _=None):
    return f"{100 * density:.4g}%"


def plain_text(value, _=None):
    return f"{value:.4g}"


class Chart:
    """Panels side by side, with one legend."""

    def __init__(self, title, panels):
        plt.rcParams.update({"font.size": 10, "axes.spines.top": False,
                             "axes.spines.right": False, "font.family": "DejaVu Sans"})
        self.figure, axes = plt.subplots(1, panels, figsize=(WIDTH * panels, HEIGHT), sharey=True,
                                         squeeze=False, layout="constrained")
        self.axes = list(axes[0])
        self.numbers = {}  # of series, in the order in which they come: the same in all panels
        self.figure.suptitle(title, fontsize=12, fontweight="bold")

    def panel(self, number, title, series, x_axis, y_axis):
        """Axes are (label, format, scale); scale "log", "log2" or "linear"."""
        axes = self.axes[number]
        axes.set_title(title, fontsize=10)
        for name, points in series.items():
            look = style(name, self.numbers.setdefault(name, len(self.numbers)))
            self.line(axes, look, points, bold=name in BOLD)
        ticks = sorted({point[0] for points in series.values() for point in points})
        self.scale(axes.xaxis, axes.set_xscale, x_axis, ticks)
        self.scale(axes.yaxis, axes.set_yscale, y_axis)
        axes.set_xlabel(x_axis[0])
        if number == 0:
            axes.set_ylabel(y_axis[0])
        axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
        axes.set_axisbelow(True)

    @staticmethod
    def line(axes, look, points, bold):
        label, colour, marker, line = look
        x, y, low, high = zip(*points)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(x, y, label=label, color=colour, marker=marker, linestyle=line,
                  markersize=5.5 if bold else 4.5, linewidth=2.6 if bold else 1.4,
                  zorder=3 if bold else 2)

    @staticmethod
    def scale(axis, set_scale, kind, ticks=None):
        _, text, scale = kind
        if scale.startswith("log"):
            set_scale("log", base=2 if scale == "log2" else 10)
            axis.set_minor_formatter(NullFormatter())
            if ticks is None:
                axis.set_major_locator(LogLocator(10, (1, 3) if scale == "log" else (1,)))
        if ticks is not None and len(ticks) <= 8:
            axis.set_ticks(ticks, minor=False)
            axis.set_ticks([], minor=True)
        axis.set_major_formatter(FuncFormatter(text))
        if ticks is not None:
            axis.set_tick_params(labelrotation=30 if len(ticks) > 5 else 0)

    def write(self, path):
        handles = collections.OrderedDict()
        self.axes[0].autoscale(axis="y")  # again, as each panel has reset it
        for axes in self.axes:
            for handle, label in zip(*axes.get_legend_handles_labels()):
                handles.setdefault(label, handle)
        self.figure.legend(handles.values(), handles.keys(), loc="upper center",
                           bbox_to_anchor=(0.5, 0), ncol=min(4, len(handles)), frameon=False)
        self.figure.savefig(path + ".png", dpi=150, bbox_inches="tight")
        plt.close(self.figure)
