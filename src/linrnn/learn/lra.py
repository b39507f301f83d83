"""Local representation alignment: layers learn from errors of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_not_negative
from linrnn.learn._base import Loop, Step
from linrnn.learn._batch import Batch, read
from linrnn.learn._traced import layers
from linrnn.learn._windows import Window, Windowed
from linrnn.mixers.p_tncn import OUT, PTNCN
from linrnn.ops._precision import without_autocast
from linrnn.state import detach
from linrnn.typing import State


class LRA(Windowed):
    r"""Local representation alignment: weights learn what the states of a P-TNCN moved to.

    Needs layers ``p_tncn``, which find a target for each state by feedback weights of their own.
    Each weight learns from what is at its two ends, at one step: nothing is passed back along time
    or through a layer, and the feedback learns with the predictions. What is around the layers
    learns from the loss of its own step, past them along the skip connections, the head among it.

    Equation::

        dW_1 = e_x f1^T   dW_2 = e1 f2^T   dE_1 = feedback dW_1^T   dE_2 = feedback dW_2^T
        dM_1 = (f1 - y1_t) x_{t-1}^T   dV_1 = (f1 - y1_t) y1_{t-1}^T   dU_1 = (f1 - y1_t) y2_{t-1}^T
        dM_2 = (f2 - y2_t) y1_{t-1}^T   dV_2 = (f2 - y2_t) y2_{t-1}^T

    each the mean over rows and steps, with the names of `linrnn.mixers.PTNCN`. As beta goes to 0
    with E_1 = W_1^T and alpha = 0, dM_1 / beta is the gradient of the prediction of one step.

    Args:
        window: steps that are read at once. All that is added up is the same for any number.
        update: batch takes one step of the optimiser for a batch; window one after each window.
        feedback: how fast feedback weights learn beside those of predictions; 0 leaves them.

    Raises:
        ArgumentError: a window below 1, a negative feedback, or a model with other layers.

    Departures from the paper:
        Layers stand in a stack between an encoder and a head; the optimiser is that of the run.

    Example:
        >>> from linrnn import learn
        >>> learn.build("lra", {"window": 16}).feedback
        1.0

    Reference:
        Ororbia et al. 2020, Continual learning of recurrent neural networks by locally aligning
        distributed representations, arXiv:1810.07411.
    """

    def __init__(
        self,
        *,
        window: int = 1,
        update: Literal["batch", "window"] = "batch",
        feedback: float = 1.0,
    ) -> None:
        super().__init__(window, update)
        check_not_negative("LRA", feedback=feedback)
        self.feedback = feedback
        self._backward: Callable[[Tensor], None] = torch.autograd.backward

    def check(self, model: nn.Module) -> None:
        """Raise unless every recurrent layer is a P-TNCN."""
        super().check(model)
        for name, layer in layers(model):
            if not isinstance(layer, PTNCN):
                raise ArgumentError(
                    f"LRA: every layer must be a p_tncn, which has targets for its states, "
                    f"got {name} ({type(layer).__name__}). Use --mixer p_tncn, or another learner."
                )

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Window by window, each with what its steps teach."""
        self._backward = loop.backward  # also of windows in which nothing is asked
        try:
            return super().step(model, batch, carried, loop)
        finally:
            self._backward = torch.autograd.backward

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, before: State | None
    ) -> tuple[Tensor, State]:
        """Answer, past layers through which no gradient goes, and let these learn."""
        steps = slice(window.start, window.stop)
        with _apart(model) as heard:
            y, after = read(model, batch, before, steps)
        valid = _valid(batch)
        share = valid if self.update == "batch" else valid[:, steps]
        with torch.enable_grad(), without_autocast(batch.x.device):
            terms = []
            for layer, x, state, reset in heard:
                found = deltas(layer, x, state, reset, valid[:, steps], self.feedback)
                weights = dict(layer.named_parameters())
                terms += [(weights[n] * d).sum() for n, d in found.items()]
            if any(t.requires_grad for t in terms):
                self._backward(torch.stack(terms).sum() / share.sum().clamp(min=1))
        return y, detach(after)


def _valid(batch: Batch) -> Tensor:
    """(batch, time): steps that are no padding."""
    steps = torch.arange(batch.x.shape[1], device=batch.x.device)
    if batch.lengths is None:
        return torch.ones(len(batch.x), len(steps), dtype=torch.bool, device=steps.device)
    return steps < batch.lengths[:, None]


@contextmanager
def _apart(model: nn.Module) -> Iterator[list[tuple[PTNCN, Tensor, Any, Tensor | None]]]:
    """Inside, no gradient goes through a layer; what each was given is noted down."""
    heard: list[tuple[PTNCN, Tensor, Any, Tensor | None]] = []

    def cut(layer: PTNCN, args: Any, kwargs: dict[str, Any], given: Any) -> Any:
        x, state = args[0], args[1] if len(args) > 1 else kwargs.get("state")
        if state is None:
            state = layer.init_state(len(x), device=x.device)
        heard.append((layer, x.detach(), detach(state), kwargs.get("reset")))
        y, after = given
        return y.detach(), detach(after)

    handles = [layer.register_forward_hook(cut, with_kwargs=True) for _, layer in layers(model)]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def deltas(
    layer: PTNCN,
    x: Tensor,
    state: dict[str, Tensor],
    reset: Tensor | None,
    valid: Tensor,
    feedback: float,
) -> dict[str, Tensor]:
    """What each weight of a layer learns, by its name: the sum over rows and valid steps.

    Args:
        layer: whose.
        x: its input (batch, time, d_model).
        state: before it.
        reset: (batch, time), where it begins anew; None: nowhere.
        valid: (batch, time), what counts.
        feedback: rate of E_1 and E_2.
    """
    x = x.to(layer.dtype)
    states = _states(layer, x, state, reset)
    keep = None if reset is None else ~reset[..., None]
    p = {n: w.to(states["y1"].dtype) for n, w in layer.named_parameters()}
    y1, y2, u = (h[:, :-1] if keep is None else h[:, :-1] * keep for h in states.values())
    z1 = F.linear(u, p["M1"]) + F.linear(y2, p["U1"]) + F.linear(y1, p["V1"])
    z2 = F.linear(torch.tanh(y1), p["M2"]) + F.linear(y2, p["V2"])
    f1, f2 = torch.tanh(z1), torch.tanh(z2)
    e1, e_x = F.linear(f2, p["W2"]) - f1, OUT[layer.output](F.linear(f1, p["W1"])) - x
    moved1, moved2 = f1 - states["y1"][:, 1:], f2 - states["y2"][:, 1:]
    found = {
        **{"M1": _outer(moved1, u, valid), "V1": _outer(moved1, y1, valid)},
        **{"U1": _outer(moved1, y2, valid), "M2": _outer(moved2, y1, valid)},
        **{"V2": _outer(moved2, y2, valid), "W1": _outer(e_x, f1, valid)},
        **{"W2": _outer(e1, f2, valid)},
    }
    found |= {"E1": feedback * found["W1"].mT, "E2": feedback * found["W2"].mT}
    return {n: d.to(layer.dtype) for n, d in found.items()}


def _outer(at: Tensor, of: Tensor, valid: Tensor) -> Tensor:
    kept = [torch.where(valid[..., None], h, 0) for h in (at, of)]  # padding may be NaN
    return torch.einsum("bti,btj->ij", *kept)


def _states(
    layer: PTNCN, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
) -> dict[str, Tensor]:
    """Before the first step and after each, (batch, 1 + time, d_model) by name."""
    found, now = [state], state
    for t in range(x.shape[1]):
        here = None if reset is None else reset[:, t : t + 1]
        _, now = layer(x[:, t : t + 1], now, reset=here)
        found.append(now)
    return {name: torch.stack([s[name] for s in found], 1) for name in ("y1", "y2", "u")}
