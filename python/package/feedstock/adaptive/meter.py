"""Measures the noise scale on a model's gradients.

```text
 backward of a micro-batch ─▶ a hook a parameter: squared norm of the rank's gradient, before the all-reduce
 after the last one        ─▶ observe(): squared norm of the averaged gradient, before clipping
 every few steps           ─▶ take(): sums since the last take, for the ranks to average
``` Cost: one more read of every gradient in the hooks and one in `observe`; no communication, and no synchronization
before `take`. Gradients of successive steps are compared if a step has nothing to compare: with one rank and one
micro-batch, and with FSDP, whose ranks never have a complete gradient. That needs a float32 copy of the gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from feedstock import ConfigError

from .noise import from_parts

if TYPE_CHECKING:
    import torch


class NoiseSample(NamedTuple):
    """Sums over `steps` steps of this rank's share in the estimates of |G|² and tr(Σ).

    If `sharded`, each rank measured a part of the parameters, and the shares are added. Otherwise each rank measured a
    part of the batch, and the shares are averaged. If `successive`, gradients of successive steps were compared.
    """

    steps: int
    sqr: float
    var: float
    sharded: bool
    successive: bool


def combine(samples: Sequence[NoiseSample]) -> tuple[int, float, float, bool] | None:
    """Returns all ranks' samples as (steps, mean |G|², mean tr(Σ), successive); None if no step counted."""
    counted = [sample for sample in samples if sample.steps > 0]
    if not counted:
        return None
    steps = max(sample.steps for sample in counted)
    shares = steps if counted[0].sharded else sum(sample.steps for sample in counted)
    return (
        steps,
        sum(sample.sqr for sample in counted) / shares,
        sum(sample.var for sample in counted) / shares,
        counted[0].successive,
    )


class GradientMeter:
    """Measures |G|² and tr(Σ) on the gradients of parameters.

    As usual, the loss of a micro-batch must be the mean over its rows, divided by the number of micro-batches of the
    step, so that `.grad` is the mean over the step's rows. `world_size` ranks average their gradients (DDP, FSDP2).
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], world_size: int) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if not self._parameters:
            raise ConfigError("watch: no parameter requires a gradient")
        self.world_size = world_size
        self.sharded: bool = any(_is_sharded(parameter) for parameter in self._parameters)
        if self.sharded:
            for parameter in self._parameters:
                _check_mesh(parameter, world_size)
        self._hooks = (
            []
            if self.sharded
            else [parameter.register_hook(self._on_gradient) for parameter in self._parameters]
        )
        self._parts_sqr: torch.Tensor | None = None  # Σ |g|² over the step's micro-batches, of this rank
        self._previous: list[torch.Tensor | None] | None = None
        self._previous_rows = 0
        self._sums: torch.Tensor | None = None  # steps, |G|², tr(Σ)
        self._successive = False

    def close(self) -> None:
        """Removes the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def discard(self) -> None:
        """Discards the sums, because the batch size or the ranks change."""
        self._parts_sqr = self._previous = self._sums = None

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        square = _square(gradient)
        self._parts_sqr = (
            square if self._parts_sqr is None else self._parts_sqr + square.to(self._parts_sqr.device)
        )

    def observe(self, local_bsz: int, accumulation_steps: int, loss_scale: float = 1.0) -> None:
        """Reads the averaged gradient: after a step's last backward, before clipping and the optimizer.

        A step whose gradient is not finite does not count.

        Args:
            local_bsz: Rows of a micro-batch on this rank.
            accumulation_steps: Micro-batches of the step.
            loss_scale: The factor of the loss, GradScaler's `get_scale()`; default 1.

        Raises:
            ConfigError: There is no gradient.
        """
        gradients = [parameter.grad for parameter in self._parameters]
        if all(gradient is None for gradient in gradients):
            raise ConfigError(
                "observe: no parameter has a gradient; call it after backward and before zero_grad"
            )
        parts = self.world_size * accumulation_steps
        parts_sqr, self._parts_sqr = self._parts_sqr, None
        if self.sharded or parts == 1:
            self._compare_with_previous(gradients, local_bsz * parts, loss_scale)
            return
        self._previous = None
        if parts_sqr is None:
            raise ConfigError("observe: no backward since the last observe; call it once an optimizer step")
        import torch

        mean_sqr = torch.stack(
            [_square(one).to(parts_sqr.device) for one in gradients if one is not None]
        ).sum()
        # A hook sees g/A, the gradient of a loss divided by the A micro-batches: Σ|g|²/A² · A² / A = A ·
        # Σ|g/A|².
        part_sqr = parts_sqr * accumulation_steps
        sqr, var = from_parts(part_sqr / loss_scale**2, mean_sqr / loss_scale**2, local_bsz, parts)
        self._count(sqr, var, successive=False)

    def take(self) -> NoiseSample:
        """Returns the sums since the last call. Synchronizes the device."""
        sums, self._sums = self._sums, None
        steps, sqr, var = (0.0, 0.0, 0.0) if sums is None else sums.tolist()
        return NoiseSample(round(steps), sqr, var, self.sharded, self._successive)

    def _compare_with_previous(
        self, gradients: list[torch.Tensor | None], rows: int, loss_scale: float
    ) -> None:
        """Compares the gradients a and b of two steps of M rows: |G|² ≈ a·b, tr(Σ) ≈ M·|a − b|²/2.

        Both would be unbiased for equal parameters; they differ by one step.
        """
        import torch

        current = [None if one is None else _local(one).detach().float() / loss_scale for one in gradients]
        previous = self._previous if self._previous_rows == rows else None
        self._previous, self._previous_rows = current, rows
        if previous is None:
            return
        products, differences = [], []
        for parameter, a, b in zip(self._parameters, previous, current, strict=True):
            if a is None or b is None:
                continue
            # A parameter that every rank has completely counts once.
            share = 1.0 if not self.sharded or _is_sharded(parameter) else 1.0 / self.world_size
            products.append(_wide(torch.sum(a * b)) * share)
            differences.append(_square(a - b) * share)
        if products:
            self._count(
                torch.stack(products).sum(), torch.stack(differences).sum() * (rows / 2), successive=True
            )

    def _count(self, sqr: torch.Tensor, var: torch.Tensor, successive: bool) -> None:
        import torch

        if successive != self._successive:
            self._successive, self._sums = successive, None
        one = torch.stack([torch.ones_like(sqr), sqr, var])
        one = torch.where(torch.isfinite(one).all(), one, torch.zeros_like(one))
        self._sums = one if self._sums is None else self._sums + one


def _square(gradient: torch.Tensor) -> torch.Tensor:
    import torch

    return _wide(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)).square()


def _wide(value: torch.Tensor) -> torch.Tensor:
    """Returns the value as float64 if the device supports it, for differences of nearly equal sums."""
    return value if value.device.type == "mps" else value.double()


def _is_sharded(parameter: torch.Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(parameter, DTensor)


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if _is_sharded(gradient) else gradient


def _check_mesh(parameter: torch.Tensor, world_size: int) -> None:
    if not _is_sharded(parameter):
        return
    mesh = parameter.device_mesh
    if mesh.ndim != 1 or mesh.size() != world_size:
        raise ConfigError(
            f"watch: parameters must be on a one-dimensional device mesh of size {world_size}, the loader's world "
            "size, because the noise scale is measured for sharding over data-parallel ranks only; got a mesh of "
            f"shape {tuple(mesh.shape)}"
        )
