"""Stagewise learning: stages of columns are added one after the other, and frozen."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_positive_int
from linrnn.learn._exact.traced import Traced
from linrnn.learn._exact.traced import layers as outermost
from linrnn.learn._parts.base import Loop, Step
from linrnn.learn._parts.batch import Batch, read
from linrnn.mixers import Mixer
from linrnn.mixers.constructive import Constructive as Network
from linrnn.typing import State

_BATCHES = "batches"


class Stagewise(Traced):
    r"""Stagewise learning: real-time recurrent learning of the stage that was added last.

    Layers must be of the mixer ``constructive``. At first each has one stage; after ``every``
    batches the next is added, which changes no answer, and what is before it is frozen: the stages
    that there were, and whatever they see, such as the encoder. The columns of the new stage see
    one another nowhere, so the gradient of the last such layer is exact at the cost of a trace for
    each parameter of one stage. What reads the stages goes on learning. The last stage learns to
    the end.

    Equation::

        E_t = A_t E_{t-1} + dh_t/dtheta,   dL/dtheta = sum_t dl_t/dh_t E_t       of one stage

    Args:
        every: batches that a stage learns before the next is added.
        window: steps through which autograd goes, as of `chunked_rtrl`; 1 is the rule as published.
        update: batch sums the gradients of all windows for one step of the optimiser; window
            takes one after each. Traces that were made with older weights are kept then.

    Raises:
        ArgumentError: an option below 1, or a layer that has no stages.

    Example:
        >>> from linrnn import learn
        >>> learn.build("stagewise", {"every": 200}).every
        200

    Reference:
        Javed, Shah, Sutton and White 2023, Scalable real-time recurrent learning using
        columnar-constructive networks, arXiv:2302.05326.
    """

    def __init__(
        self, *, every: int = 1000, window: int = 1, update: Literal["batch", "window"] = "batch"
    ) -> None:
        super().__init__(window, update)
        check_positive_int("Stagewise", every=every)
        self.every, self.batches = every, 0
        self._seen: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()

    def check(self, model: nn.Module) -> None:
        """Raise unless each layer grows in stages."""
        for name, layer in outermost(model):
            if not isinstance(layer, Network):
                raise ArgumentError(
                    f"Stagewise: every layer must have stages to add, got {name} "
                    f"({type(layer).__name__}), which is whole. Use the mixer constructive."
                )
        super().check(model)

    def layers(self, model: nn.Module) -> list[tuple[str, Mixer]]:
        """The stage of each layer that learns."""
        stages: list[tuple[str, Mixer]] = []
        for name, layer in networks(model):
            s = self._stage(layer)
            stage = layer.stages[s]
            assert isinstance(stage, Mixer)
            stages.append((f"{name}.stages.{s}", stage))
        return stages

    def _stage(self, layer: Network) -> int:
        return min(self.batches // self.every, layer.n_stages - 1)

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Forward and backward, with a stage more where it is time for one."""
        for _, layer in networks(model):
            layer.grow(self._stage(layer) + 1)
        with self._frozen(model, batch):
            step = super().step(model, batch, carried, loop)
        self.batches += 1
        return step

    def begin(self, model: nn.Module, rows: int, *, anew: bool) -> None:
        """Forget the rows that end, and the traces of stages that learn no more."""
        learning = {name for name, _ in self.layers(model)}
        self.traces = {name: traces for name, traces in self.traces.items() if name in learning}
        super().begin(model, rows, anew=anew)

    @contextmanager
    def _frozen(self, model: nn.Module, batch: Batch) -> Iterator[None]:
        """Inside, what is not of the stage that learns, nor reads it, has no gradient."""
        names: set[str] = set()
        if self.batches >= self.every:
            if model not in self._seen:
                self._seen[model] = seen_by_stages(model, batch)
            names |= self._seen[model]
        for name, layer in networks(model):
            for s, stage in enumerate(layer.stages):
                if s != self._stage(layer):
                    names |= {f"{name}.stages.{s}.{n}" for n, _ in stage.named_parameters()}
        frozen = [p for n, p in model.named_parameters() if n in names and p.requires_grad]
        for p in frozen:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in frozen:
                p.requires_grad_(True)

    def state_dict(self) -> dict[str, Tensor]:
        """The traces, and how many batches came."""
        count = {_BATCHES: torch.tensor(self.batches)} if self.batches else {}
        return super().state_dict() | count

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave."""
        super().load_state_dict({n: trace for n, trace in state.items() if n != _BATCHES})
        self.batches = int(state.get(_BATCHES, 0))


def networks(model: nn.Module) -> list[tuple[str, Network]]:
    """The layers that have stages, by name."""
    return [(name, layer) for name, layer in outermost(model) if isinstance(layer, Network)]


def seen_by_stages(model: nn.Module, batch: Batch) -> set[str]:
    """The parameters that what a stage reads depends on, but for those of stages."""
    probe = copy.deepcopy(model).eval().requires_grad_(True)
    inputs: list[Tensor] = []

    def listen(layer: nn.Module, args: Any) -> None:
        inputs.append(args[0])

    stages = [name for name, _ in networks(probe)]
    handles = [layer.register_forward_pre_hook(listen) for _, layer in networks(probe)]
    one = Batch(*(None if v is None else v[:1] for v in batch))  # type: ignore[arg-type]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        read(probe, one, None, slice(0, 1))
    for handle in handles:
        handle.remove()
    named = dict(probe.named_parameters())
    names: set[str] = set()
    for x in inputs:
        if x.requires_grad:
            grads = torch.autograd.grad(
                x.sum(), list(named.values()), retain_graph=True, allow_unused=True
            )
            names |= {n for n, g in zip(named, grads, strict=True) if g is not None}
    return {n for n in names if not any(n.startswith(f"{s}.stages.") for s in stages)}
