"""0/1 Adam: an optimizer whose ranks step by themselves, and exchange in between how they moved.

    optimizer = sluice_torch.ZeroOneAdam(module.parameters(), lr=0.003)
    model.register_comm_hook(*optimizer.comm_hook())  # of a DistributedDataParallel

Lu, Li, Zhang, De Sa and He, "Maximizing Communication Efficiency for Large-scale Training via 0/1
Adam", ICLR 2023. After a warm-up with plain Adam each rank takes several steps with its own
gradients. What it moved since the last exchange travels in few bits, with error feedback, and all
ranks go on from the average of the moves. What differs here:

- A move travels as scaled integers of 4 or 8 bits, which aggregators can add, not as signs.
- Variances are not frozen. Frozen after few steps, those of rare words were too small for what came
  later. Each rank goes on with its own gradients as with a share of the average: with g / N, the
  average where no other rank has a gradient, as of a rare word. Where all N have independent ones
  Adam's variances are N times as large, so a rank moves as with a higher learning rate there.
  Averages of the variances are exchanged seldom.

Between exchanges the ranks' parameters differ: see exchange().
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch
import torch.distributed as dist

from sluice_torch.groups import backend_of

__all__ = ["ZeroOneAdam"]

_MOST = {"int8": 127, "int4": 7}  # the largest integer of an encoding
_BLOCK = 256  # elements with one scale
_SMALLEST = 2.0**-100  # moves below are as good as none


def _rounded(moves: torch.Tensor, encoding: str) -> torch.Tensor:
    """What comes through an exchange in this encoding unchanged."""
    blocks = torch.nn.functional.pad(moves, (0, -moves.numel() % _BLOCK)).view(-1, _BLOCK)
    largest = blocks.abs().amax(1, keepdim=True).clamp_min_(_SMALLEST)
    scale = torch.exp2(torch.ceil(torch.log2(largest / _MOST[encoding])))
    return blocks.div(scale).round_().mul_(scale).flatten()[:moves.numel()]


class ZeroOneAdam(torch.optim.Optimizer):
    """For dense float32 parameters, equal on all ranks at first, in groups of the backend sluice.
    All ranks call step() equally often. A parameter without a gradient counts as one of zeros.

    params, lr, eps: as of torch.optim.Adam; 0 or more.
    betas: 0 or more, below 1.
    warm_up: the first steps, 0 or more, which are Adam's on averages of float32 gradients.
    local_steps: after these, 1 or more steps for each exchange.
    encoding: "int4" or "int8": how moves travel.
    variance_every: after so many exchanges, 1 or more, one of the variances in bfloat16.
    group: of torch.distributed; None: the default one.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, warm_up: int = 10,
                 local_steps: int = 3, encoding: str = "int4", variance_every: int = 20,
                 group: Optional[dist.ProcessGroup] = None):
        for name, value in (("lr", lr), ("eps", eps), ("warm_up", warm_up)):
            if not value >= 0:
                raise ValueError(f"sluice: ZeroOneAdam: {name} is {value}; 0 or more expected")
        for name, value in (("local_steps", local_steps), ("variance_every", variance_every)):
            if not value >= 1:
                raise ValueError(f"sluice: ZeroOneAdam: {name} is {value}; 1 or more expected")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"sluice: ZeroOneAdam: betas are {betas}; 0 or more, and below 1,"
                             " expected")
        if encoding not in _MOST:
            raise ValueError(f"sluice: ZeroOneAdam: encoding is {encoding!r};"
                             f" one of {', '.join(_MOST)} expected")
        self.warm_up, self.local_steps, self.encoding = warm_up, local_steps, encoding
        self.variance_every = variance_every
        self.group = group
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        for parameter in self._parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(f"sluice: ZeroOneAdam: a parameter is {parameter.dtype};"
                                 " torch.float32 expected")

    def comm_hook(self) -> tuple[ZeroOneAdam, Callable]:
        """For DistributedDataParallel.register_comm_hook(): gradients stay each rank's own, since
        step() exchanges what is to be exchanged."""
        return self, _keep_gradients

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Moves the parameters. `closure` computes gradients and returns the loss, as this does.
        RuntimeError: a gradient is sparse; the exchange failed."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters = self._parameters()
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise RuntimeError("sluice: ZeroOneAdam: a gradient is sparse; a dense one"
                                   " expected")
            if not self.state[parameter]:
                self._begin(parameter)
        gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                     for parameter in parameters]
        warms_up = self.state[parameters[0]]["step"] < self.warm_up
        if warms_up:
            gradients = self._averages(gradients, torch.float32)
        own = iter(gradients)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._move(parameter, next(own), group, 1 if warms_up else self._ranks())
        if warms_up:
            for parameter in parameters:
                self.state[parameter]["agreed"].copy_(parameter)
        elif (self.state[parameters[0]]["step"] - self.warm_up) % self.local_steps == 0:
            self.exchange()
        return loss

    @torch.no_grad()
    def exchange(self) -> None:
        """Makes the parameters equal on all ranks, which must all call it: before a model is
        saved or tested. Not needed after a step() that did it.
        RuntimeError: the exchange failed; the parameters stay as they are."""
        states = [self.state[parameter] for parameter in self._parameters()]
        if not all(states):
            return  # no step yet
        moves = torch.cat([
            (parameter - state["agreed"] + state["left_out"]).flatten()
            for parameter, state in zip(self._parameters(), states)])
        mean = _rounded(moves, self.encoding)
        moves.sub_(mean)
        backend = backend_of(self.group, "ZeroOneAdam")
        backend.all_reduce_encoded(mean, self.encoding, _BLOCK).wait()
        for parameter, state, moved, left in zip(self._parameters(), states, self._parts(mean),
                                                 self._parts(moves)):
            state["agreed"].add_(moved)
            state["left_out"].copy_(left)
            parameter.copy_(state["agreed"])
        for state in states:
            state["exchanges"] += 1
        if states[0]["exchanges"] % self.variance_every == 0:
            means = self._averages([state["exp_avg_sq"] for state in states], torch.bfloat16)
            for state, variances in zip(states, means):
                state["exp_avg_sq"].copy_(variances)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _ranks(self) -> int:
        return dist.get_world_size(self.group)

    def _begin(self, parameter: torch.Tensor) -> None:
        state = self.state[parameter]
        state["step"] = state["exchanges"] = 0
        for name in ("exp_avg", "exp_avg_sq", "left_out"):
            state[name] = torch.zeros_like(parameter)
        state["agreed"] = parameter.detach().clone()  # equal on all ranks

    def _move(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any],
              ranks: int) -> None:
        state = self.state[parameter]
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean, squares = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        squares.mul_(beta2).addcmul_(gradient, gradient, value=(1 - beta2) / ranks**2)
        root = squares.div(1 - beta2 ** state["step"]).sqrt_().add_(group["eps"])
        parameter.addcdiv_(mean, root, value=-group["lr"] / (1 - beta1 ** state["step"]))

    def _averages(self, tensors: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        """Over the ranks; they travel as `dtype`."""
        flat = torch.cat([tensor.flatten() for tensor in tensors]).div_(self._ranks()).to(dtype)
        dist.all_reduce(flat, group=self.group)
        return self._parts(flat)

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """One for each parameter, in its shape."""
        parameters = self._parameters()
        parts = flat.split([parameter.numel() for parameter in parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, parameters)]


# DDP wants these annotations, and not as texts.
def _keep_gradients(_: object, bucket):
    kept = torch.futures.Future()
    kept.set_result(bucket.buffer())
    return kept


_keep_gradients.__annotations__ = {"bucket": dist.GradBucket,
                                   "return": torch.futures.Future[torch.Tensor]}
