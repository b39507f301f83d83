"""A read-out in closed form, of layers that stay as they were drawn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from linrnn.compute.moments import Moments, solve_ridge
from linrnn.errors import ArgumentError, check_positive
from linrnn.learn._parts.base import Learner, Loop, Step
from linrnn.learn._parts.batch import Batch, read
from linrnn.mixers import Mixer
from linrnn.nn.linear import plain_linear
from linrnn.state import detach
from linrnn.tasks import IGNORE
from linrnn.typing import State

_SUMS = ("rows", "xx", "xy", "yy")
_FLAT = 1e-12  # of its mean square: a feature whose variance is below that never moved


class Ridge(Learner):
    r"""The head by a ridge regression on what a frozen model feeds it, from sums over all batches.

    For reservoirs, and for what a layer is worth before it learns. What the head reads of each
    step with a target is z_t, and the target y_t the target values, or 1 for the right
    class and 0 for the others; the head becomes the least squares of all batches up to now, in
    float64. Only sums of products are kept, whose size does not depend on what was read, so one
    pass through the data is all there is to learn, and a run of several epochs ends with the same
    head but for rounding. Encoder, blocks and norms stay as they were drawn, and read as they do
    in evaluation: no dropout, no statistics of a batch. Learning rate, weight decay and clipping
    play no part. Scores of classes are such numbers and no logits, so that it is the accuracy that
    counts and not the cross-entropy.

    Equation::

        W = (S + penalty diag(S))^-1 R,   b = mean(y) - mean(z) W
        S = sum_t z~_t^T z~_t,   R = sum_t z~_t^T y~_t       (z~, y~ less their means)

    Args:
        penalty: in units of what each feature varies, above 0.
        washout: steps of each sequence that are read and not fitted, while the state still is
            that of the beginning.
        frozen: take layers that have something to learn, and leave it as it was drawn.

    Raises:
        ArgumentError: an option outside its range; a layer that would have to learn, without
            ``frozen``; a head that is no separate linear map; targets that are neither
            classes nor numbers like the answers; a washout that leaves nothing; several processes.

    Example:
        >>> from linrnn import learn
        >>> learn.build("ridge", {"washout": 100}).washout
        100

    Reference:
        Jaeger 2001, The 'echo state' approach to analysing and training recurrent neural networks.
    """

    descends: ClassVar[bool] = False

    def __init__(self, *, penalty: float = 1e-6, washout: int = 0, frozen: bool = False) -> None:
        check_positive("Ridge", penalty=penalty)
        if washout < 0:
            raise ArgumentError(f"Ridge: washout must be at least 0, got {washout}.")
        self.penalty, self.washout, self.frozen = penalty, washout, frozen
        self.moments: Moments | None = None

    def check(self, model: nn.Module) -> None:
        """Raise unless the head is a separate linear map, and nothing below it would learn."""
        head = getattr(model, "head", None)
        if not plain_linear(head) or getattr(model, "tie_embeddings", False):
            kind = "the embedding too" if plain_linear(head) else type(head).__name__
            raise ArgumentError(
                f"Ridge: the model must have a head that is a separate linear map, got {kind}. "
                "Leave out --model.tie-embeddings and --model.logit-soft-cap."
            )
        for name, layer in model.named_modules():
            learns = [n for n, p in layer.named_parameters() if p.requires_grad]
            if isinstance(layer, (Mixer, nn.RNNBase)) and learns and not self.frozen:
                raise ArgumentError(
                    f"Ridge: the head must be all that learns, got {name} ({type(layer).__name__}) "
                    f"with {learns[0]}, which would have to. Use the mixer reservoir with d_state "
                    "as wide as the model, or --learner.frozen to leave all as it was drawn."
                )

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Read a batch, and add to the sums; `after_update` solves."""
        _check_alone()
        with torch.no_grad(), _as_in_evaluation(model), _seen_by(model.head) as head_inputs:
            y, next_state = read(model, batch, carried)
        loss = loop.loss(y, batch.target)
        fitted = self._fitted(batch, y, anew=carried is None)
        z, target = head_inputs[0][fitted], numbers_asked(y, batch.target)[fitted]
        self.moments = self._with(z.double().cpu(), target.double().cpu())
        return Step(loss.detach(), y, detach(next_state))

    def after_update(self, model: nn.Module) -> None:
        """Give the head the solution."""
        head, moments = model.head, self.moments
        if moments is None or not moments.rows:
            return
        assert isinstance(head, nn.Linear)
        weight, bias = solution(moments, self.penalty, bias=head.bias is not None)
        with torch.no_grad():
            head.weight.copy_(weight.T)
            if head.bias is not None:
                head.bias.copy_(bias)

    def _fitted(self, batch: Batch, y: Tensor, *, anew: bool) -> Tensor:
        """Which answers are fitted: boolean (batch,), or (batch, time)."""
        if y.ndim == 2:
            if self.washout:
                raise ArgumentError(
                    "Ridge: washout must be 0 where a model answers once a sequence, got "
                    f"{self.washout}. Leave out --learner.washout."
                )
            return torch.ones(len(y), dtype=torch.bool, device=y.device)
        steps = torch.arange(y.shape[1], device=y.device).expand(y.shape[:2])
        begun = torch.full_like(steps, 0 if anew else -self.washout)
        if batch.reset is not None:
            begun = torch.where(batch.reset, steps, begun).cummax(1).values
        fitted = steps - begun >= self.washout
        if anew and not fitted.any():
            raise ArgumentError(
                f"Ridge: washout must be below the {y.shape[1]} steps of a sequence, got "
                f"{self.washout}. Lower --learner.washout."
            )
        if batch.lengths is not None:
            fitted = fitted & (steps < batch.lengths[:, None])
        if not batch.target.is_floating_point():
            fitted = fitted & (batch.target != IGNORE)
        return fitted

    def _with(self, z: Tensor, target: Tensor) -> Moments:
        """The sums with those of more rows."""
        z = torch.cat([z, z.new_ones(len(z), 1)], 1)  # (rows, features + 1)
        added = Moments.empty(1, z.shape[1], 0, target.shape[1])
        added.add(z[None], target[None], None)
        if self.moments is None:
            return added
        if self.moments.xy.shape != added.xy.shape:
            raise ArgumentError(
                f"Ridge: the sums must be of {tuple(added.xy.shape[1:])} features and answers, got "
                f"{tuple(self.moments.xy.shape[1:])}. Are they those of another run?"
            )
        return self.moments + added

    def state_dict(self) -> dict[str, Tensor]:
        """The sums over all batches: rows, and products of features (with a 1) and targets."""
        return {} if self.moments is None else {n: getattr(self.moments, n) for n in _SUMS}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from the sums that `state_dict` gave."""
        if not state:
            self.moments = None
            return
        shapes = {name: tuple(x.shape) for name, x in state.items()}
        one, features, answers = (*shapes.get("xy", ()), 0, 0, 0)[:3]
        expected = {
            "rows": (),
            "xx": (1, features, features),
            "xy": (1, features, answers),
            "yy": (1, answers),
        }
        if shapes != expected or one != 1:
            raise ArgumentError(
                "Ridge: the learner's state must be sums of products, got "
                f"{shapes}. Is it that of another learner?"
            )
        empty = Moments.empty(1, features, 0, answers)
        sums = {name: state[name].double().cpu() for name in _SUMS}
        self.moments = Moments(**sums, zz=empty.zz, zx=empty.zx, zy=empty.zy)


def solution(moments: Moments, penalty: float, *, bias: bool) -> tuple[Tensor, Tensor]:
    """Weights (features, answers) and bias (answers,), of sums whose last feature is 1."""
    xx, xy = moments.xx[0, :-1, :-1], moments.xy[0, :-1]
    mean = moments.xx[0, :-1, -1] / moments.rows
    middle = moments.xy[0, -1] / moments.rows
    a, b = xx, xy
    if bias:
        a = xx - moments.rows * mean[:, None] * mean
        b = xy - moments.rows * mean[:, None] * middle
    moved = a.diagonal() > _FLAT * xx.diagonal()
    weight = solve_ridge(
        torch.where(moved[:, None] & moved, a, 0.0),
        torch.where(moved[:, None], b, 0.0),
        torch.where(moved, a.diagonal(), 0.0),
        penalty,
    )
    return weight, middle - mean @ weight


def numbers_asked(y: Tensor, target: Tensor) -> Tensor:
    """A target for every answer: the number itself, or whether its class is the right one."""
    if target.is_floating_point() and target.shape == y.shape:
        return target
    if not target.is_floating_point() and target.shape == y.shape[:-1]:
        return nn.functional.one_hot(target.clamp_min(0), y.shape[-1])
    raise ArgumentError(
        f"Ridge: targets must be classes, or numbers of the shape {tuple(y.shape)} of the answers, "
        f"got {target.dtype} of shape {tuple(target.shape)}. Use the learner bptt."
    )


def _check_alone() -> None:
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if together else 1
    if size > 1:
        raise ArgumentError(
            f"Ridge: train.devices must be 1, got {size} processes. Leave out --train.devices."
        )


@contextmanager
def _as_in_evaluation(model: nn.Module) -> Iterator[None]:
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


@contextmanager
def _seen_by(head: Any) -> Iterator[list[Tensor]]:
    """Inside, collect the inputs of the head."""
    inputs: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    try:
        yield inputs
    finally:
        hook.remove()
