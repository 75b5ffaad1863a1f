"""Optimizers and hooks for PyTorch over Sluice that are kept for experiments.

    import sluice_contrib

They are tested and can be compared (`bench/convergence`), but they are no part of `sluice_torch`,
because docs/training.md does not show that they help: EF21 ends far from the exact loss with small
batches, and DelayedAdam is another optimizer than Adam, with or without Sluice. No package installs
them. Put `contrib/torch` on PYTHONPATH, beside `sluice_torch`.
"""
from sluice_contrib.delayed_adam import DelayedAdam
from sluice_contrib.ef21 import Estimates, ef21

__all__ = ["DelayedAdam", "Estimates", "ef21"]
