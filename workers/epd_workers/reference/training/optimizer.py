"""Muon for matrices, Adam for the rest.

Muon's step is the nearest orthogonal matrix to the momentum, found by Newton-Schulz iterations: every direction of a
matrix learns equally fast, which takes far fewer steps at these sizes.

Source: Jordan et al., Muon (2024); Liu et al. (2025) for the scale 0.2 sqrt(max), by which one rate serves both rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_ROUNDS: Final = 5
_MOMENTUM: Final = 0.95
_BETAS: Final = (0.9, 0.95)
_SCALE: Final = 0.2
_TINY: Final = 1e-8


class Muon(torch.optim.Optimizer):
    """Both rules behind one interface; a group says by `matrix` which it is.

    Args:
        named: Parameters by name; embeddings, heads and tables go to Adam.
        rate: Highest learning rate of a parameter, by its name.
        decay: Weight decay of all.
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], rate: Callable[[str], float], decay: float = 0.01
    ) -> None:
        sorted_out: dict[tuple[bool, float], list[nn.Parameter]] = {}
        for name, parameter in named:
            key = parameter.dim() >= 2 and not _looked_up(name), rate(name)
            sorted_out.setdefault(key, []).append(parameter)
        groups = [
            {"params": parameters, "matrix": matrix, "highest": highest, "lr": highest}
            for (matrix, highest), parameters in sorted_out.items()
        ]
        super().__init__(groups, {"decay": decay, "steps": 0})

    @torch.no_grad()
    @override
    def step(self, closure: object = None) -> None:  # type: ignore[override] # no closure is used
        """One step from the gradients."""
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if group["matrix"]:
                    update = self._matrix(parameter, parameter.grad)
                else:
                    update = self._adam(parameter, parameter.grad, group["steps"])
                parameter.mul_(1 - group["lr"] * group["decay"]).sub_(update, alpha=group["lr"])

    def _matrix(self, parameter: Tensor, grad: Tensor) -> Tensor:
        state = self.state[parameter]
        momentum: Tensor = state.setdefault("momentum", torch.zeros_like(parameter))
        momentum.lerp_(grad, 1 - _MOMENTUM)
        ahead = torch.lerp(grad, momentum, _MOMENTUM)
        result: Tensor = orthogonal(ahead) * (_SCALE * max(parameter.shape[-2:]) ** 0.5)
        return result

    def _adam(self, parameter: Tensor, grad: Tensor, steps: int) -> Tensor:
        state = self.state[parameter]
        first: Tensor = state.setdefault("first", torch.zeros_like(parameter))
        second: Tensor = state.setdefault("second", torch.zeros_like(parameter))
        first.lerp_(grad, 1 - _BETAS[0])
        second.lerp_(grad.square(), 1 - _BETAS[1])
        size: Tensor = (second / (1 - _BETAS[1] ** steps)).sqrt_().add_(_TINY)
        return first / (1 - _BETAS[0] ** steps) / size


def orthogonal(matrix: Tensor) -> Tensor:
    """Roughly the nearest matrix [..., m, n] with singular values of one: x <- a x + (b x xᵀ + c (x xᵀ)²) x.

    In bfloat16: the iterations converge from anywhere near.
    """
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = (matrix.mT if tall else matrix).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + _TINY)
    a, b, c = _COEFFICIENTS
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    result: Tensor = x.mT if tall else x
    return result.to(matrix.dtype)


def _looked_up(name: str) -> bool:
    return "embed" in name or name.startswith(("head", "shape", "colour", "place")) or ".gate." in name
