"""UORO: an unbiased estimate of rank one of what a state owes to its parameters."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap

from linrnn.compute.layout import like
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.learn._exact.owners import real_parts, with_real_parts
from linrnn.learn._exact.traced import Traced, check_no_draws
from linrnn.learn._exact.traces import Entry, Heard, Traces, alone, begun
from linrnn.mixers import Mixer
from linrnn.typing import State

_PREFIX = "direction"


class UORO(Traced):
    r"""Unbiased online recurrent optimisation: real-time recurrent learning at the cost of a step.

    For each recurrent layer and each row of a batch, the derivatives of its state by all its
    parameters are estimated by one product A B^T, of a vector as long as the state and one as long
    as the parameters. Random signs make its mean the derivatives themselves, so the gradient of a
    layer whose output reaches the loss through no other recurrence is unbiased, of any layer whose
    state has a fixed size. It is also noisy, the more the larger a state is and the longer it
    remembers: rows have noise of their own, and more copies are averaged, which divides the
    variance by their number. A small learning rate does the same over time.

    Memory is that of the state and the parameters of a layer, for each row and copy; time is that
    of a forward and a backward pass of each step more. As of `diagonal_rtrl`, errors go down a
    stack at the step at hand alone, and what is below the last recurrent layer learns from that.

    Equation::

        A <- rho_0 J_t A + rho_1 nu,   B <- B / rho_0 + (dh_t/dtheta)^T nu / rho_1
        rho_0^2 = |B| / |J_t A|,   rho_1^2 = |(dh_t/dtheta)^T nu| / |nu|,   nu = +-1 at random
        dL/dtheta = sum_t (dl_t/dh_{t-1} . A) B + dl_t/dtheta,   with A and B of before the step
        A = B = 0 at first, and a term of norm 0 is none

    As published, the loss of a step is a function of the state before it and of the parameters.

    Args:
        copies: products that are averaged.
        update: batch sums the gradients of all steps for one step of the optimiser; step takes
            one after each. Products that were made with older weights are kept then.

    Raises:
        ArgumentError: copies below 1, or a layer whose state grows or that draws random numbers
            in training.

    Example:
        >>> from linrnn import learn
        >>> learn.build("uoro", {"copies": 4}).copies
        4

    Reference:
        Tallec and Ollivier 2018, Unbiased online recurrent optimization, arXiv:1702.05043. Some
        later texts multiply B by rho_1 where it has to be divided.
    """

    def __init__(self, *, copies: int = 1, update: Literal["batch", "step"] = "batch") -> None:
        super().__init__(1, "window" if update == "step" else "batch")
        check_positive_int("UORO", copies=copies)
        self.copies = copies
        self.directions: dict[str, Tensor] = {}
        """A of each layer: (copies, batch, size)."""

    def find(self, name: str, layer: Mixer) -> str:
        """Its name: nothing else has to be known."""
        if "constant_memory" in layer.declared:
            raise ArgumentError(
                f"UORO: every layer must have a state of fixed size, got {name} "
                f"({type(layer).__name__}), whose state grows with what was read. Use tbptt."
            )
        check_no_draws("UORO", name, layer)
        return name

    def begin(self, model: nn.Module, rows: int, *, anew: bool) -> None:
        """Forget the rows that end, and those that are not in this batch."""
        super().begin(model, rows, anew=anew)
        directions = self.directions if self.traces else {}
        for name, traces in self.traces.items():
            if name not in directions or any(
                len(b) != len(directions[name]) for b in traces.values()
            ):
                raise ArgumentError(
                    f"UORO: each layer must have as many directions as products, got {name} "
                    "without. Is it the state of another run?"
                )
        self.directions = {name: a[:, :rows] for name, a in directions.items()}

    def owing(self, layer: Mixer, name: str, traces: Traces, state: State) -> Entry:
        """A state of a layer that depends on the layer's parameters as its product says."""
        parameters = dict(layer.named_parameters())
        learned = {n: b for n, b in traces.items() if parameters[n].requires_grad}
        if not learned:
            return Entry(state)
        parts = real_parts(state)
        h: Tensor = _Owing.apply(
            self.directions[name], learned, torch.cat(parts, 1), *(parameters[n] for n in learned)
        )
        return Entry(with_real_parts(state, h.split([part.shape[1] for part in parts], 1)))

    def advance(self, layer: Mixer, name: str, traces: Traces, heard: Heard) -> Traces:
        """The product after a step."""
        state, goes_on = begun(layer, heard)
        size = sum(h.shape[1] for h in real_parts(state))
        shape, like = (self.copies, len(heard.x), size), real_parts(state)[0]
        signs = torch.randint(2, shape, device=like.device, dtype=like.dtype) * 2 - 1
        previous = self.directions.get(name)
        a = torch.zeros_like(signs) if previous is None else previous
        ahead, direct = _moved(layer, state, heard, a, signs)
        if goes_on is not None:
            ahead = ahead * goes_on[:, None]
        direction, new = _mixed(ahead, traces, signs, direct)
        self.directions = {**self.directions, name: direction}
        return new

    def state_dict(self) -> dict[str, Tensor]:
        """Both vectors of every layer."""
        directions = {f"{_PREFIX}/{name}": a for name, a in self.directions.items()}
        return super().state_dict() | directions

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the vectors that `state_dict` gave."""
        directions = {n: a for n, a in state.items() if n.startswith(f"{_PREFIX}/") and a.ndim == 3}
        super().load_state_dict({n: b for n, b in state.items() if n not in directions})
        self.directions = {n.removeprefix(f"{_PREFIX}/"): a for n, a in directions.items()}


class _Owing(torch.autograd.Function):
    """The numbers of a state as they are, and derivatives of them as a product says."""

    @staticmethod
    def forward(ctx: Any, direction: Tensor, traces: Traces, h: Tensor, *_: Tensor) -> Tensor:
        ctx.direction, ctx.traces = direction, traces
        return h.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        # (copies, batch)
        credit = torch.einsum("bs,cbs->cb", g.to(ctx.direction.dtype), ctx.direction)
        credit = credit / len(credit)
        grads = [torch.tensordot(credit.to(b.dtype), b, 2) for b in ctx.traces.values()]
        return (None, None, None, *grads)


def _moved(
    layer: Mixer, state: State, heard: Heard, a: Tensor, signs: Tensor
) -> tuple[Tensor, Traces]:
    """For one step ``J A`` (copies, batch, size), and of each parameter ``nu^T dh/dtheta``."""
    parameters = {n: p.detach() for n, p in layer.named_parameters()}
    times = {n: v for n, v in heard.more.items() if n == "dt"}
    sizes = [h.shape[1] for h in real_parts(state)]

    def of_row(x: Tensor, state: State, a: Tensor, signs: Tensor, more: Any) -> Any:
        start = torch.cat(real_parts(alone(state)), 1)[0]

        def next_state(learned: Mapping[str, Tensor], h: Tensor) -> Tensor:
            previous_state = with_real_parts(alone(state), h[None].split(sizes, 1))
            named = {n: v[None] for n, v in more.items()}
            _, last = functional_call(layer, dict(learned), (x[None], previous_state), named)
            return torch.cat(real_parts(last), 1)[0]

        def ahead(direction: Tensor) -> Tensor:
            product: Tensor = jvp(lambda h: next_state(parameters, h), (start,), (direction,))[1]
            return product

        _, pull = vjp(lambda learned: next_state(learned, start), parameters)  # type: ignore[misc]
        return vmap(ahead)(a), vmap(pull)(signs)[0]

    with torch.enable_grad():
        rows = vmap(of_row, in_dims=(0, 0, 1, 1, 0), randomness="different")
        ahead, direct = rows(heard.x, state, a, signs, times)
    # rows in front, where alone vmap can put those of a parameter that moves no state
    return ahead.detach().transpose(0, 1), {
        n: m.detach().transpose(0, 1) for n, m in direct.items()
    }


def _mixed(ahead: Tensor, traces: Traces, signs: Tensor, direct: Traces) -> tuple[Tensor, Traces]:
    """The sum of two products as one, whose mean over the signs is the sum.

    Each is balanced between its factors, so that what they have with one another, which is 0 in
    the mean, is as small as can be.
    """
    old = _ratio(_norm(traces), ahead.norm(dim=2)) if traces else torch.zeros_like(ahead[..., 0])
    new = _ratio(_norm(direct), signs.norm(dim=2))
    direction = old[..., None] * ahead + new[..., None] * signs
    mixed = {n: _times(_inverse(new), m) for n, m in direct.items()}
    for n, b in traces.items():
        mixed[n] = mixed[n] + _times(_inverse(old), b)
    return direction, mixed


def _norm(traces: Traces) -> Tensor:
    """(copies, batch)."""
    norms = torch.stack([torch.linalg.vector_norm(b.flatten(2), dim=2) for b in traces.values()])
    norm: Tensor = torch.linalg.vector_norm(norms, dim=0)
    return norm


def _ratio(of: Tensor, by: Tensor) -> Tensor:
    """The root of a quotient, 0 where one of the two is 0, and their product is none."""
    defined = (of != 0) & (by != 0)
    return torch.where(defined, of / torch.where(defined, by, 1), 0).sqrt()


def _inverse(ratio: Tensor) -> Tensor:
    return torch.where(ratio != 0, 1 / torch.where(ratio != 0, ratio, 1), 0)


def _times(scale: Tensor, b: Tensor) -> Tensor:
    return like(scale.to(b.dtype), b) * b
