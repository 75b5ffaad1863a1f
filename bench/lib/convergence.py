"""Runs of bench/convergence: models, contestants, and the file with the results."""
import csv
import math
import os
import statistics
from dataclasses import astuple, dataclass, fields

import processes
import trainer
from trainer import Trainer

WINDOW = 25  # steps per row
LAST = 2  # the loss of a run is the mean of so many rows
EXACT = "exact"

# Smaller than by default, so that 3 seeds of all contestants take half an hour on two cores. With
# smaller batches SGD needs a smaller rate, too: 0.2 diverges.
SMALL = ("--batch", "8", "--vocabulary", "2000")
MODELS = {  # name: the example's name, and settings
    "language model with Adam": ("language_model", SMALL),
    "language model with SGD": ("language_model_sgd", (*SMALL, "--learning-rate", "0.05")),
    "section classifier": ("dense_gradients", ("--rows", "32768", "--batch", "256")),
}


def hook(name, *flags, models=tuple(MODELS)):
    return Trainer(name, ["sluice", "--hook", *flags]), models


def contestants():
    """(contestant, models that it trains), the exact one first. Names have no commas."""
    adam, sgd, _ = MODELS
    language = (adam, sgd)
    top_k = ["top-k", "--bf16-wire", "--ratio", "0.1"]
    half = ["--momentum", "0.5"]  # or beta1
    as_fast = ["--learning-rate", "0.25"]  # as 0.05 with a momentum of 0.9
    delayed = ["--optimizer", "delayed-adam"]
    return [
        (Trainer(EXACT, ["sluice"]), tuple(MODELS)),
        hook("bf16", "bf16"),
        hook("top-k 10% bf16", *top_k),
        hook("random-k 10% bf16", "random-k", "--bf16-wire", "--ratio", "0.1", models=language),
        hook("threshold 0.08 bf16", "threshold", "--bf16-wire", "--norm", "0.08", models=language),
        hook("EF21 top-k 5%", "ef21-top-k", "--ratio", "0.05", models=language),
        hook("top-k 10% by Adam bf16; beta1 0.5", *top_k, "--by-adam", *half,
             models=(adam,)),
        (Trainer("exact; momentum 0.5", ["sluice", *half, *as_fast]), (sgd,)),
        hook("top-k 10% bf16; momentum 0.5", *top_k, *half, *as_fast, models=(sgd,)),
        (Trainer("exact; beta1 0.5", ["sluice", *half]), (adam,)),
        (Trainer("exact; DelayedAdam", ["sluice", *delayed]), (adam,)),
        (Trainer("ZeroOneAdam", ["sluice", "--optimizer", "zero-one-adam"]), (adam,)),
        (Trainer("ZeroOneAdam; rate 0.0042",
                 ["sluice", "--optimizer", "zero-one-adam", "--learning-rate", "0.0042"]), (adam,)),
        (Trainer("exact; rate 0.0042", ["sluice", "--learning-rate", "0.0042"]), (adam,)),
        hook("top-k 10% by Adam bf16; DelayedAdam", *top_k, "--by-adam", *delayed, models=(adam,)),
    ]


def names():
    return [taker.name for taker, _ in contestants()]


def contestants_of(model, wanted=None):
    """The requested contestants, or all, of those that the model has."""
    return [taker for taker, models in contestants()
            if model in models and (wanted is None or taker.name in wanted)]


@dataclass(frozen=True)
class Run:
    model: str
    contestant: str
    seed: int
    steps: int
    ranks: int


def trained(run, taker):
    """Runs it now, and returns its figures."""
    example, settings = MODELS[run.model]
    more = ("--steps", run.steps, "--seed", run.seed, "--compute-every", 0)
    with processes.Stage() as stage:
        taker.start(stage, run.ranks)
        return taker.train(trainer.Training(example, run.ranks, settings + more))


class Runs:
    """Results in a file. A row is a window of steps: its mean loss, and the bytes that all ranks
    have sent until its end."""

    def __init__(self, path):
        self.path = path
        self._windows = {}  # by run: [(step, loss, bytes)]
        if os.path.exists(path):
            with open(path, encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    run = Run(*(field.type(row[field.name]) for field in fields(Run)))
                    self._windows.setdefault(run, []).append(
                        (int(row["step"]), float(row["loss"]), float(row["bytes"])))

    def __contains__(self, run):
        return run in self._windows

    def add(self, run, figures):
        sent, windows = 0, []
        for begin in range(0, run.steps, WINDOW):
            sent += sum(figures["bytes_sent"][begin:begin + WINDOW])
            loss = statistics.fmean(figures["losses"][begin:begin + WINDOW])
            windows.append((begin + WINDOW, loss, sent))
        self._windows[run] = windows
        new = not os.path.exists(self.path)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow([*(field.name for field in fields(run)), "step", "loss", "bytes"])
            writer.writerows([*astuple(run), step, f"{loss:.6f}", f"{sent:.0f}"]
                             for step, loss, sent in windows)

    def loss(self, run):
        return statistics.fmean(loss for _, loss, _ in self._windows[run][-LAST:])

    def bytes(self, run):
        return self._windows[run][-1][2]


HEADER = ["", "loss", "by seed", "from the exact loss", "sent by all ranks", "times fewer"]


def table(kept, model, seeds, steps, ranks):
    """Rows by contestant, for the seeds that both it and the exact one have."""
    def runs_of(name):
        runs = [Run(model, name, seed, steps, ranks) for seed in seeds]
        return [run for run in runs if run in kept]

    exact = {run.seed: run for run in runs_of(EXACT)}
    for taker in contestants_of(model):
        runs = [run for run in runs_of(taker.name) if run.seed in exact]
        if not runs:
            continue
        losses = [kept.loss(run) for run in runs]
        against = statistics.fmean(kept.loss(exact[run.seed]) for run in runs)
        loss, sent = statistics.fmean(losses), statistics.fmean(map(kept.bytes, runs))
        all_bytes = statistics.fmean(kept.bytes(exact[run.seed]) for run in runs)
        from_exact = f"{100 * (loss / against - 1):+.2f} %" if math.isfinite(loss) else "diverges"
        yield [taker.name, f"{loss:.4f}", ", ".join(f"{one:.3f}" for one in losses), from_exact,
               f"{sent / 1e6:.1f} MB", f"{all_bytes / sent:.1f}"]
