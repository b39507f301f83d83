"""How far back a trained layer remembers, measured on data."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.backbone import SequenceModel
from linrnn.mixers import Mixer
from linrnn.train.seeding import generator
from linrnn.typing import Signals

_PROBES = 8


@dataclass(frozen=True, kw_only=True)
class LayerMemory:
    """How far back one layer's outputs depend on its inputs, and how fast its state decays."""

    influence: Tensor
    """(lags,): root mean square gradient of the last output with respect to the input k steps
    back, relative to the largest."""
    time_constants: Tensor | None
    """-1 / ln|lambda| of each eigenvalue in steps, sorted; None without fixed eigenvalues."""

    @property
    def span(self) -> int:
        """Steps back within which 90 % of the squared influence lies."""
        energy = self.influence.double().square().cumsum(0)
        return int((energy < 0.9 * energy[-1]).sum())


def measure(model: SequenceModel, x: Tensor) -> list[LayerMemory]:
    """Measure every mixer on what it reads when the model reads ``x``.

    The influence is that of a single mixer, without the skip connection around it; it is
    estimated by vector-Jacobian products with random vectors, so it works for any recurrence.

    Args:
        model: in evaluation mode.
        x: a batch of the model's input.
    """
    inputs = inputs_of_mixers(model, x)
    return [
        LayerMemory(influence=_influence(m, *z), time_constants=_time_constants(m))
        for m, z in zip(model.mixers, inputs, strict=True)
    ]


def inputs_of_mixers(model: SequenceModel, x: Tensor) -> list[tuple[Tensor, Signals | None]]:
    """Record what every mixer reads when the model reads ``x``: the stream, and its signals."""
    inputs: list[tuple[Tensor, Signals | None]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.append((args[0].detach(), kwargs.get("signals")))

    hooks = [mixer.register_forward_pre_hook(note, with_kwargs=True) for mixer in model.mixers]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def _influence(mixer: Mixer, z: Tensor, signals: Signals | None) -> Tensor:
    random = generator(0, "memory probes", 0)
    power = torch.zeros(z.shape[1], dtype=torch.float64)
    with torch.enable_grad():
        z = z.clone().requires_grad_()
        more: Any = {} if signals is None else {"signals": signals}
        last = mixer(z, **more)[0][:, -1]  # (B, D)
        for _ in range(_PROBES):
            probe = torch.randn(last.shape, generator=random).to(last)
            (gradient,) = torch.autograd.grad(last, z, probe, retain_graph=True)
            power += gradient.double().square().sum(-1).mean(0).cpu()  # (T,)
    influence = power.flip(0).sqrt()
    return influence / influence.max().clamp_min(torch.finfo(torch.float64).tiny)


def _time_constants(mixer: Mixer) -> Tensor | None:
    with torch.no_grad():
        eigenvalues = mixer.eigenvalues()
    if eigenvalues is None:
        return None
    radius = eigenvalues.abs().double().flatten().cpu()
    return (-1 / radius.log()).sort(descending=True).values
