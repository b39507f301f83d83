"""Local representation alignment (not Long Range Arena): layers learn from errors of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import without_autocast
from linrnn.errors import ArgumentError, check_not_negative, check_positive
from linrnn.learn._exact.traced import check_alone, layers
from linrnn.learn._parts.base import Loop, Step
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.feedback import Feedback, by_steps
from linrnn.learn._parts.windows import Window, Windowed
from linrnn.mixers import Mixer
from linrnn.mixers.p_tncn import OUT, PTNCN
from linrnn.nn import Pool
from linrnn.state import detach
from linrnn.typing import State


class LocalRepresentationAlignment(Windowed):
    r"""Local representation alignment, not Long Range Arena: each layer has its own target.

    Nothing is passed back along time or through a layer: a weight learns from one step. What is
    around the layers learns from the loss of its step, past them along the skip connections,
    the head among it; a norm right before a layer stays as it is. There are two kinds of targets.

    Layers ``p_tncn`` find targets for their states by feedback weights of their own, and learn from
    these and from their predictions alone::

        dW_1 = e_x f1^T   dW_2 = e1 f2^T   dE_1 = feedback dW_1^T   dE_2 = feedback dW_2^T
        dM_1 = (f1 - y1_t) x_{t-1}^T   dV_1 = (f1 - y1_t) y1_{t-1}^T   dU_1 = (f1 - y1_t) y2_{t-1}^T
        dM_2 = (f2 - y2_t) y1_{t-1}^T   dV_2 = (f2 - y2_t) y2_{t-1}^T

    each the mean over rows and steps, with the names of `linrnn.mixers.PTNCN`. As beta goes to 0
    with E_1 = W_1^T and alpha = 0, dM_1 / beta is the gradient of the prediction of one step.

    The output z of any other layer has its target where the error of the answer, fed straight back
    by separate weights E, moves it; input and state before the step are given::

        e_t = dL/dy_t,   target_t = z_t - beta E e_t
        dtheta = sum_t (dz_t/dtheta)^T (z_t - target_t),   E <- E - rate feedback sum_t z_t e_t^T

    so that with E the transposed weights of a head that reads z, dtheta / beta is the gradient of
    the loss of one step. E learns what a weight from z to the answer would, transposed.

    Args:
        window: steps that are read at once. All that is added up is the same for any number.
        update: batch takes one step of the optimiser for a batch; window one after each window.
        feedback: how fast feedback weights learn beside those of predictions, or beside ``rate``;
            0 leaves them as they were drawn.
        beta: of layers other than p_tncn, how far targets lie from outputs.
        rate: of their feedback weights, which no optimiser sees.

    Raises:
        ArgumentError: a window below 1, a negative feedback or rate, a beta that is not above 0, or
            a model that answers once a sequence and has layers other than p_tncn.

    Departures from the paper:
        Layers stand in a stack between an encoder and a head; the optimiser is that of the run. In
        the paper the target of a layer comes from the error of the one above it; that of a layer
        without its own feedback comes from the answer here, for blocks lie between the layers. E
        is drawn from N(0, 1 / d_model).

    Example:
        >>> from linrnn import learn
        >>> learn.build("local_representation_alignment", {"window": 16}).feedback
        1.0

    Reference:
        Ororbia et al. 2020, Continual learning of recurrent neural networks by locally aligning
        distributed representations, arXiv:1810.07411.
    """

    aliases: ClassVar[tuple[str, ...]] = ("lra",)

    def __init__(
        self,
        *,
        window: int = 1,
        update: Literal["batch", "window"] = "batch",
        feedback: float = 1.0,
        beta: float = 1.0,
        rate: float = 0.01,
    ) -> None:
        super().__init__(window, update)
        check_not_negative("LocalRepresentationAlignment", feedback=feedback, rate=rate)
        check_positive("LocalRepresentationAlignment", beta=beta)
        self.feedback, self.beta, self.rate = feedback, beta, rate
        self.fed_back = Feedback("LocalRepresentationAlignment", beta, rate * feedback)
        self._backward: Callable[[Tensor], None] = torch.autograd.backward

    def check(self, model: nn.Module) -> None:
        """Raise unless each layer has a target at each step."""
        super().check(model)
        check_alone("LRA", layers(model))
        not_ptncn = [(n, layer) for n, layer in layers(model) if not isinstance(layer, PTNCN)]
        for part in model.modules():
            if not_ptncn and isinstance(part, Pool) and part.kind != "none":
                name, layer = not_ptncn[0]
                raise ArgumentError(
                    "LocalRepresentationAlignment: pool must be 'none' where a layer is no p_tncn, "
                    "for the target of its output comes from the answer to that step, got "
                    f"{part.kind!r} with {name} "
                    f"({type(layer).__name__}). Use --mixer p_tncn, or another learner."
                )

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Window by window, each with what its steps teach."""
        self.fed_back.settle()
        self._backward = loop.backward  # also of windows in which nothing is asked
        try:
            return super().step(model, batch, carried, loop)
        finally:
            self._backward = torch.autograd.backward

    def begin(self, model: nn.Module, rows: int, *, anew: bool) -> None:
        """Raise where feedback is to layers that the model has not."""
        layer_names = {name for name, layer in layers(model) if not isinstance(layer, PTNCN)}
        for name in self.fed_back.weights:
            if name not in layer_names:
                raise ArgumentError(
                    "LocalRepresentationAlignment: feedback must be to layers of the model, got "
                    f"{name!r}. Is it the state of another run?"
                )

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, previous_state: State | None
    ) -> tuple[Tensor, State]:
        """Answer, past layers through which no gradient goes, and let these learn."""
        steps = slice(window.start, window.stop)
        if self.update == "window":
            self.fed_back.settle()
        with _cut_layers(model) as heard:
            y, next_state = read(model, batch, previous_state, steps)
        valid = _valid(batch)
        share = valid if self.update == "batch" else valid[:, steps]
        with torch.enable_grad(), without_autocast(batch.x.device):
            terms = [t for one in heard for t in self._own_terms(one, valid[:, steps])]
            if any(t.requires_grad for t in terms):
                self._backward(torch.stack(terms).sum() / share.sum().clamp(min=1))
        return self._taught(y, heard, valid[:, steps]), detach(next_state)

    def _own_terms(self, one: "_Heard", valid: Tensor) -> list[Tensor]:
        """Return the loss terms of one layer, whose gradients its weights learn from."""
        if not isinstance(one.layer, PTNCN):
            return []
        reset = one.more.get("reset")
        updates = deltas(one.layer, one.x, one.state, reset, valid, self.feedback)
        weights = dict(one.layer.named_parameters())
        return [(weights[n] * d).sum() for n, d in updates.items()]

    def _taught(self, y: Tensor, heard: Sequence["_Heard"], valid: Tensor) -> Tensor:
        """The answers, whose error reaches the outputs of layers that have no other target."""
        if not torch.is_grad_enabled():
            return y
        outputs: dict[str, Tensor] = {}
        for one in heard:
            if not isinstance(one.layer, PTNCN):
                x = torch.where(valid[..., None], one.x, 0)  # padding may be NaN
                z = by_steps(one.layer, x, one.state, one.more)
                outputs |= {one.name: z} if z.requires_grad else {}
        return self.fed_back.taught(y, outputs) if outputs else y

    def state_dict(self) -> dict[str, Tensor]:
        """The feedback weights of layers that have none of their own."""
        return self.fed_back.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with feedback weights that `state_dict` gave."""
        self.fed_back.load_state_dict(state)


class _Heard(NamedTuple):
    """Inputs of a layer in a window."""

    name: str
    layer: Mixer
    x: Tensor
    state: Any
    more: dict[str, Tensor]
    """``reset`` and ``dt``, where there are such."""


def _valid(batch: Batch) -> Tensor:
    """(batch, time): steps that are no padding."""
    steps = torch.arange(batch.x.shape[1], device=batch.x.device)
    if batch.lengths is None:
        return torch.ones(len(batch.x), len(steps), dtype=torch.bool, device=steps.device)
    return steps < batch.lengths[:, None]


@contextmanager
def _cut_layers(model: nn.Module) -> Iterator[list[_Heard]]:
    """Inside, no gradient goes through a layer; the input of each is noted down."""
    heard: list[_Heard] = []

    def cut(name: str) -> Any:
        def listen(layer: Mixer, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
            x, state = args[0], args[1] if len(args) > 1 else kwargs.get("state")
            if state is None:
                state = layer.init_state(len(x), device=x.device)
            more = {n: kwargs[n] for n in ("reset", "dt") if kwargs.get(n) is not None}
            heard.append(_Heard(name, layer, x.detach(), detach(state), more))
            y, next_state = result
            return y.detach(), detach(next_state)

        return listen

    handles = [
        layer.register_forward_hook(cut(name), with_kwargs=True) for name, layer in layers(model)
    ]
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
    """Compute the update of each weight, by its name: the sum over rows and valid steps.

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
    updates = {
        **{"M1": _outer(moved1, u, valid), "V1": _outer(moved1, y1, valid)},
        **{"U1": _outer(moved1, y2, valid), "M2": _outer(moved2, y1, valid)},
        **{"V2": _outer(moved2, y2, valid), "W1": _outer(e_x, f1, valid)},
        **{"W2": _outer(e1, f2, valid)},
    }
    updates |= {"E1": feedback * updates["W1"].mT, "E2": feedback * updates["W2"].mT}
    return {n: d.to(layer.dtype) for n, d in updates.items()}


def _outer(at: Tensor, of: Tensor, valid: Tensor) -> Tensor:
    masked = [torch.where(valid[..., None], h, 0) for h in (at, of)]  # padding may be NaN
    return torch.einsum("bti,btj->ij", *masked)


def _states(
    layer: PTNCN, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
) -> dict[str, Tensor]:
    """Before the first step and after each, (batch, 1 + time, d_model) by name."""
    history, now = [state], state
    for t in range(x.shape[1]):
        step_reset = None if reset is None else reset[:, t : t + 1]
        _, now = layer(x[:, t : t + 1], now, reset=step_reset)
        history.append(now)
    return {name: torch.stack([s[name] for s in history], 1) for name in ("y1", "y2", "u")}
