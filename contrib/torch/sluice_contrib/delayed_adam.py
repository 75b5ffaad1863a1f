"""Adam for gradients that come late, in sums of several steps.

    optimizer = sluice_contrib.DelayedAdam(module.parameters(), lr=0.003)
    model.register_comm_hook(*sluice_torch.top_k(0.1, optimizer))

Error feedback keeps what a compressor leaves out, and sends it later in one piece. Adam (Kingma and
Ba, ICLR 2015) squares this piece, as if the gradient of that step alone were so large, and then
takes too small steps for a thousand. Here an element that was 0 for some steps counts as a gradient
that was the same in each of them: g after t steps adds g^2 / t to the squares (t times (g / t)^2),
where Adam adds g^2. While no element is 0 both are the same.

So rare gradients, as of an embedding's rare words, move an element further than with Adam, also if
nothing is compressed. Error feedback delays gradients as a momentum does, hence the smaller beta1.
"""
from collections.abc import Callable, Iterable
from typing import Any, Optional

import torch

__all__ = ["DelayedAdam"]


class DelayedAdam(torch.optim.Optimizer):
    """For dense gradients; more state than Adam's by one tensor.

    params: as of any optimizer of torch.
    lr: the learning rate, 0 or more.
    betas: 0 or more, below 1: the shares of the mean gradients, and of the mean squares, that stay.
    eps: 0 or more; added to the root of the mean squares.
    weight_decay: 0 or more; the share of a parameter, times lr, by which it shrinks in each step,
        as in AdamW.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.5, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0):
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} is {value}; 0 or more expected")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas are {betas}; 0 or more, and below 1, expected")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps,
                                  "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Moves the parameters. `closure` computes gradients and returns the loss, as this does.
        RuntimeError: a gradient is sparse."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient, state = parameter.grad, self.state[parameter]
        if gradient.is_sparse:
            raise RuntimeError("DelayedAdam: a gradient is sparse; a dense one expected")
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq", "waiting"):
                state[name] = torch.zeros_like(parameter)
        beta1, beta2 = group["betas"]
        mean, squares, waiting = state["exp_avg"], state["exp_avg_sq"], state["waiting"]
        state["step"] += 1
        waiting.add_(1)  # steps since an element was not 0; bfloat16 counts to 256
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        squares.mul_(beta2).addcmul_(gradient, gradient / waiting, value=1 - beta2)
        waiting.masked_fill_(gradient != 0, 0)
        root = squares.div(1 - beta2 ** state["step"]).sqrt_().add_(group["eps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(mean, root, value=-group["lr"] / (1 - beta1 ** state["step"]))
