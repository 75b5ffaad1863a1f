"""Sluice as a backend of torch.distributed.

    import torch.distributed as dist
    import sluice_torch

    dist.init_process_group("sluice")

Importing this registers the backend. Settings are Sluice's environment variables; `pg_options`, a
dict such as {"streams": "128"}, names those that a group has otherwise: as the variable, in lower
case and without SLUICE_.
"""
from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from typing import Any

try:
    import torch  # noqa: F401: loads the libraries that the backend is linked with
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ImportError(f"sluice_torch needs PyTorch, which {sys.executable} does not have: use the"
                      " Python that has it (Debian's is /usr/bin/python3, with the package"
                      " python3-torch), or build the backend for a PyTorch of your own"
                      " (docs/torch.md)") from None
import torch.distributed as dist

try:
    from sluice_torch._backend import ProcessGroupSluice
except ImportError as error:
    raise ImportError(f"sluice_torch's backend cannot be loaded by {sys.executable} with PyTorch"
                      f" {torch.__version__}: {error}; if it was built for another Python or"
                      " PyTorch, build it for this one (docs/torch.md)") from None
from sluice_torch import _backend
from sluice_torch.groups import all_reduce_encoded, bytes_sent
from sluice_torch.hooks import Compressor, bf16, random_k, threshold, top_k
from sluice_torch.inspection import Recorder
from sluice_torch.memory import share_buckets, shared_memory
from sluice_torch.ok_top_k import OkTopK, ok_top_k
from sluice_torch.zero_one_adam import ZeroOneAdam

__all__ = ["Compressor", "OkTopK", "ProcessGroupSluice", "Recorder", "ZeroOneAdam",
           "all_reduce_encoded", "bf16", "bytes_sent", "ok_top_k", "random_k", "shared_memory",
           "threshold", "top_k"]
__version__ = "0.1.0"


def _create(options: Any, pg_options: Mapping[str, Any] | None) -> ProcessGroupSluice:
    if not isinstance(pg_options, Mapping | None):
        raise TypeError(f"sluice: pg_options is a {type(pg_options).__name__}; a dict of settings"
                        " expected")
    settings = {name: str(value) for name, value in (pg_options or {}).items()}
    group = ProcessGroupSluice(options, settings)
    if _backend.shares_memory():
        share_buckets()
    return group


def _register() -> None:
    devices = {} if torch.__version__.startswith("1.") else {"devices": ["cpu", "cuda"]}
    dist.Backend.register_backend("sluice", _create, extended_api=True, **devices)


def _close_all() -> None:
    """An exception that nobody has handled was printed, and ends the program. (An interactive one
    has gone on since.)"""
    _backend.close_all(getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1"))


_register()
atexit.register(_close_all)  # c10d keeps groups until the interpreter is gone
