"""sluice-inspect: how sparse a model's gradients are, by layer and block size, and what that is
worth on a given network.

In the training program, for a few steps:

    recorder = sluice_torch.Recorder(model)
    ...  # train as ever
    recorder.save("density.json")  # on one rank

Then `sluice-inspect density.json --ranks 8 --gbit 100` predicts how long the exchange of a step's
gradients takes, for each block size, and beside it a dense ring AllReduce.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Optional

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048)  #: elements
PACKET_OVERHEAD = 120  # bytes: Ethernet, IPv4, UDP, and a DATA or RESULT without its columns
COLUMN_BYTES = 12  # of a block in a packet
FRAME_BYTES = 9000


@dataclasses.dataclass
class Layer:
    """One parameter's gradient, over the steps recorded."""
    name: str
    elements: int
    element_bytes: int
    steps: int = 0
    blocks: dict[int, int] = dataclasses.field(default_factory=dict)  #: non-zero, by block size
    union: dict[int, int] = dataclasses.field(default_factory=dict)  #: on any rank

    def density(self, size: int) -> float:
        """The share of this rank's blocks that are not zero."""
        return self._share(self.blocks, size)

    def union_density(self, size: int) -> float:
        """The share of blocks that are not zero on some rank."""
        return self._share(self.union, size)

    def _share(self, counts: dict[int, int], size: int) -> float:
        return counts.get(size, 0) / (-(-self.elements // size) * self.steps) if self.steps else 0.0


class Recorder:
    """Counts the non-zero blocks of every gradient that the model's parameters get from now on,
    those of this rank and, where a process group is up, those of all ranks together, for which it
    exchanges a byte for each block: all ranks must record, and the same steps."""

    def __init__(self, model: Any, block_sizes: Sequence[int] = BLOCK_SIZES):
        import torch.distributed as dist

        self.block_sizes = tuple(block_sizes)
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.layers: list[Layer] = []
        self._hooks = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                layer = Layer(name, parameter.numel(), parameter.element_size())
                self.layers.append(layer)
                self._hooks.append(parameter.register_hook(self._record_into(layer)))

    def close(self) -> None:
        """Records no more."""
        for hook in self._hooks:
            hook.remove()

    def save(self, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"ranks": self.ranks, "block_sizes": self.block_sizes,
                       "layers": [dataclasses.asdict(layer) for layer in self.layers]}, file)

    def _record_into(self, layer: Layer) -> Any:
        import torch
        import torch.distributed as dist

        def nonzero_blocks(gradient: torch.Tensor, size: int) -> torch.Tensor:
            if gradient.is_sparse:
                rows = torch.unique(gradient.detach()._indices()[0])
                row = layer.elements // gradient.shape[0]
                places = (rows[:, None] * row + torch.arange(0, row, min(size, row))).flatten()
                places = torch.cat([places, rows * row + row - 1])
                found = torch.zeros(-(-layer.elements // size), dtype=torch.bool)
                found[places // size] = True
                return found
            flat = gradient.detach().flatten() != 0
            padded = torch.nn.functional.pad(flat, (0, -len(flat) % size))
            return padded.view(-1, size).any(1)

        def record(gradient: torch.Tensor) -> None:
            layer.steps += 1
            for size in self.block_sizes:
                found = nonzero_blocks(gradient, size)
                layer.blocks[size] = layer.blocks.get(size, 0) + int(found.sum())
                if self.ranks > 1:
                    union = found.to(torch.uint8)
                    dist.all_reduce(union, op=dist.ReduceOp.MAX)
                    found = union
                layer.union[size] = layer.union.get(size, 0) + int(found.sum())

        return record


@dataclasses.dataclass
class Network:
    ranks: int
    aggregators: int = 1
    gbit: float = 100.0  #: of each port, per second and direction
    latency_us: float = 10.0  #: one way

    def dense_ms(self, elements_bytes: int) -> float:
        """A ring AllReduce of dense tensors: each rank sends 2 (N - 1) / N of them."""
        share = 2 * (self.ranks - 1) / self.ranks
        return self._ms(share * elements_bytes) + 2 * (self.ranks - 1) * self.latency_us / 1000

    def sparse_ms(self, sent: float, received: float) -> float:
        """Each rank sends and receives so many bytes; the aggregators share what all send."""
        most = max(sent, received, self.ranks * max(sent, received) / self.aggregators)
        return self._ms(most) + 2 * self.latency_us / 1000

    def _ms(self, size: float) -> float:
        return size * 8 / (self.gbit * 1e9) * 1000


def wire_bytes(blocks: float, block_bytes: int) -> float:
    """Of so many blocks in packets that are as full as can be."""
    room = max(1, (FRAME_BYTES - PACKET_OVERHEAD) // (block_bytes + COLUMN_BYTES))
    return blocks * (block_bytes + COLUMN_BYTES) + math.ceil(blocks / room) * PACKET_OVERHEAD


def union_for(own: float, union: float, recorded_ranks: int, ranks: int) -> float:
    """The union's density among so many ranks, from that among those recorded: as if they were that
    many or fewer independent ones."""
    if not 0 < own < 1 or ranks == 1:
        return own
    independent = float(ranks)
    if recorded_ranks > 1:
        seen = math.log(max(1 - union, 1e-12)) / math.log(1 - own)  # 1: all alike
        independent = max(seen, 1.0) ** (math.log(ranks) / math.log(recorded_ranks))
    return float(1 - (1 - own) ** independent)


@dataclasses.dataclass
class Prediction:
    """What a step's exchange costs a rank."""
    label: str
    sent: float  #: bytes
    received: float
    ms: float

    def row(self, dense_ms: float) -> str:
        return (f"{self.label:>18} {self.sent / 1e6:>7.2f} MB {self.received / 1e6:>7.2f} MB"
                f" {self.ms:>7.2f} ms {dense_ms / self.ms:>5.1f}x")


def heading(label: str) -> str:
    return f"{label:>18} {'sent':>10} {'received':>10} {'time':>10} {'gain':>6}"


def predict(layers: Sequence[Layer], size: int, recorded_ranks: int,
            network: Network) -> Prediction:
    """With blocks of so many elements, and the density that was recorded."""
    sent = received = 0.0
    for layer in layers:
        blocks = -(-layer.elements // size)
        own = layer.density(size)
        union = union_for(own, layer.union_density(size), recorded_ranks, network.ranks)
        sent += wire_bytes(own * blocks, size * layer.element_bytes)
        received += wire_bytes(union * blocks, size * layer.element_bytes)
    return Prediction(str(size), sent, received, network.sparse_ms(sent, received))


def predict_compressed(layers: Sequence[Layer], size: int, network: Network) -> list[Prediction]:
    """The most that each compressor leaves."""
    def wire(density: float, halved: bool) -> float:
        return sum(wire_bytes(density * -(-layer.elements // size),
                              size * layer.element_bytes // (2 if halved else 1))
                   for layer in layers)

    rules = [("bf16()", 1.0, 1.0)]  # name, density of a rank, of the union
    for ratio in (0.1, 0.03, 0.01):
        rules.append((f"top_k({ratio})", ratio, 1 - (1 - ratio) ** network.ranks))
        rules.append((f"random_k({ratio})", ratio, ratio))
    predictions = []
    for label, own, union in rules:
        sent, received = wire(own, label == "bf16()"), wire(union, label == "bf16()")
        predictions.append(Prediction(label, sent, received, network.sparse_ms(sent, received)))
    return predictions


def read(path: str) -> tuple[list[Layer], list[int], int]:
    """The layers, the block sizes, and how many ranks recorded."""
    with open(path, encoding="utf-8") as file:
        recorded = json.load(file)
    layers = []
    for told in recorded["layers"]:
        counts = {name: {int(size): count for size, count in told.pop(name).items()}
                  for name in ("blocks", "union")}
        layers.append(Layer(**told, **counts))
    return layers, recorded["block_sizes"], recorded["ranks"]


def report(layers: Sequence[Layer], sizes: Sequence[int], recorded_ranks: int,
           network: Network) -> str:
    total = sum(layer.elements * layer.element_bytes for layer in layers)
    dense = network.dense_ms(total)
    predictions = [predict(layers, size, recorded_ranks, network) for size in sizes]
    best = min(predictions, key=lambda prediction: prediction.ms)
    compressed = predict_compressed(layers, int(best.label), network)
    return "\n".join([
        "density of a rank's gradients, in % of blocks, by elements per block", "",
        f"{'layer':40} {'elements':>11} " + " ".join(f"{size:>6}" for size in sizes),
        *(f"{layer.name[-40:]:40} {layer.elements:>11,} " + " ".join(
            f"{100 * layer.density(size):6.1f}" for size in sizes) for layer in layers),
        "", f"{network.ranks} ranks, {network.aggregators} aggregators, {network.gbit:g} Gbit/s,"
        f" {total / 1e6:,.1f} MB of gradients a step; a dense ring: {dense:.2f} ms", "",
        heading("elements per block"), *(p.row(dense) for p in predictions), "",
        f"best: SLUICE_BLOCK_ELEMENTS={best.label}" if best.ms < dense else
        "no block size beats a dense ring here: it needs a compressor or more aggregators", "",
        f"with a compressor and {best.label} elements per block:", "",
        heading("at most"), *(p.row(dense) for p in compressed)])


class ShowVersion(argparse.Action):
    """Loads the library, which knows its build, only when it is asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from sluice_torch import _backend
        print(f"{parser.prog} {_backend.version} (build {_backend.build})")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sluice-inspect", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", metavar="FILE", help="what Recorder.save wrote")
    parser.add_argument("--ranks", type=int, help="that train (as many as recorded)")
    parser.add_argument("--aggregators", type=int, default=1, help="(1)")
    parser.add_argument("--gbit", type=float, default=100.0, help="of a port, per second (100)")
    parser.add_argument("--latency-us", type=float, default=10.0, help="one way (10)")
    parser.add_argument("--version", action=ShowVersion, nargs=0, default=argparse.SUPPRESS,
                        help="print the version and the build, and exit")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = make_parser()
    given = parser.parse_args(arguments)
    for name in ("ranks", "aggregators", "gbit"):
        value = getattr(given, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} is {value}; above 0 expected")
    try:
        layers, sizes, ranks = read(given.recording)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"sluice-inspect: {given.recording}: {error!r}; a file that Recorder.save wrote is"
              " expected", file=sys.stderr)
        return 1
    network = Network(given.ranks or ranks, given.aggregators, given.gbit, given.latency_us)
    print(report(layers, sizes, ranks, network))
    return 0


if __name__ == "__main__":
    sys.exit(main())
