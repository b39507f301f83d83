"""FPTT: forward propagation through time, a step of the optimiser after each part."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in, check_positive_int
from linrnn.learn._parts.base import Loop, Step
from linrnn.learn._parts.batch import Batch, read
from linrnn.learn._parts.windows import Answers, Window, Windowed
from linrnn.state import detach
from linrnn.typing import State

_KINDS = ("mean", "slope")
_SOFT = "soft"


class FPTT(Windowed):
    r"""Forward propagation through time: a sequence is cut into parts, and each takes a step.

    Every part is learned from by itself, as a window of `tbptt` is, with a step of the optimiser
    after it. What keeps these steps from forgetting the parts before is a penalty on the distance
    to a running mean of the weights, corrected by a running estimate of the slope. Memory is that
    of the activations of one part and of two numbers for each parameter. The objective is not that
    of back-propagation: it is biased on purpose, and in the long run has the same minima.

    Where a model answers once a sequence, each part predicts the answer as well: what is known
    of it after a share w of the sequence counts w, and the rest pulls a classifier towards a soft
    answer, which is uniform, or what the model itself gave for examples of that class. A row
    that ends has its whole loss in the part that it ends in. Numbers that are not classes have no
    soft answer.

    Equation::

        loss of a part = L(theta) + alpha/2 |theta - mean|^2 - <slope, theta>
        theta <- a step of the optimiser
        slope <- slope - alpha (theta - mean)
        mean  <- (1 - beta) mean + beta theta - beta/alpha slope
        L = w L(y, target) + (1 - w) CE(y, soft),  w = (end of the part) / time, at an end alone

    Args:
        parts: of a sequence, each a step of the optimiser; the last may be shorter.
        alpha: weight of the penalty, above 0. Published: 0.1 for images, 0.5 for adding.
        beta: how fast the mean follows, in (0, 1].
        soft: the answer that early parts are pulled to besides: uniform, or running means of what
            the model gave for each class at the end.
        decay: of these running means, in [0, 1).

    Raises:
        ArgumentError: parts below 1, alpha, beta or decay outside their range, or a model that
            does not read forward in time.

    Example:
        >>> from linrnn import learn
        >>> learn.build("fptt", {"parts": 5, "alpha": 0.1}).alpha
        0.1

    Reference:
        Kag and Saligrama 2021, Training recurrent neural networks via forward propagation through
        time, ICML. The slope is tracked, as in the authors' code, and not computed again.
    """

    exact: ClassVar[Mapping[str, Any]] = {"parts": 1}

    def __init__(
        self,
        *,
        parts: int = 10,
        alpha: float = 0.5,
        beta: float = 0.5,
        soft: Literal["uniform", "running"] = "uniform",
        decay: float = 0.99,
    ) -> None:
        super().__init__(1, "window")
        check_positive_int("FPTT", parts=parts)
        check_in("FPTT", "soft", soft, ("uniform", "running"))
        if not (0 < alpha < float("inf") and 0 < beta <= 1 and 0 <= decay < 1):
            raise ArgumentError(
                "FPTT: alpha must be above 0, beta in (0, 1] and decay in [0, 1), got "
                f"alpha={alpha}, beta={beta}, decay={decay}."
            )
        self.parts, self.alpha, self.beta, self.soft, self.decay = parts, alpha, beta, soft, decay
        self.mean: dict[str, Tensor] = {}
        self.slope: dict[str, Tensor] = {}
        self.answers: Tensor | None = None
        """(classes, classes): the mean answer to examples of each class."""

    def step(self, model: nn.Module, batch: Batch, carried: State | None, loop: Loop) -> Step:
        """Forward and backward, part by part, with a step of the optimiser after each."""
        self._follow(model)  # the step after the last part was the loop's own
        self.window = -(-max(batch.x.shape[1], 1) // self.parts)
        state, losses, pending = carried, [], False
        answers: Answers | None = None
        for window in self._windows(batch.x.shape[1]):
            if pending:
                loop.update()
                self._follow(model)
            silent = answers and answers.per_step and not answers.weight(window)
            with torch.no_grad() if silent else nullcontext():
                y, state = self.read_window(model, batch, window, state)
            answers = answers or Answers(batch, per_step=y.ndim > 2)
            outputs, target = answers.add(window, y)
            weight = answers.weight(window)
            loss = loop.loss(outputs, target) if weight else None
            if loss is not None:
                losses.append(loss.detach() * weight)
            if not answers.per_step:
                loss = self._terminal(answers, y, window, loop)
            pending = loss is not None
            if loss is not None:
                loop.backward(loss + self._penalty(model))
        assert answers is not None
        if self.soft == "running" and not answers.per_step:
            self._remember(answers.whole(), batch.target)
        return Step(torch.stack(losses).sum(), answers.whole(), cast(State, state))

    def read_window(
        self, model: nn.Module, batch: Batch, window: Window, previous_state: State | None
    ) -> tuple[Tensor, State]:
        """Answer, and the state after the part, without a history."""
        y, next_state = read(model, batch, previous_state, slice(window.start, window.stop))
        return y, detach(next_state)

    def _terminal(self, answers: Answers, y: Tensor, window: Window, loop: Loop) -> Tensor | None:
        """The loss of a part where there is one answer to a sequence."""
        target, time = answers.batch.target, answers.batch.x.shape[1]
        ends = (answers.ends > window.start) & (answers.ends <= window.stop)
        going = answers.ends > window.stop
        share = window.stop / time
        terms = []
        if bool(ends.any()):
            terms.append(loop.loss(*_of(ends, y, target)) * (int(ends.sum()) / len(y)))
        if bool(going.any()):
            outputs, labels = _of(going, y, target)
            early = share * loop.loss(outputs, labels)
            if not target.is_floating_point() and target.ndim == 1:
                early = early + (1 - share) * self._soft_loss(outputs, labels)
            terms.append(early * (int(going.sum()) / len(y)))
        return torch.stack(terms).sum() if terms else None

    def _soft_loss(self, y: Tensor, target: Tensor) -> Tensor:
        logits = y.to(torch.promote_types(y.dtype, torch.float32))
        soft = torch.full_like(logits, 1 / logits.shape[1])
        if self.answers is not None and self.answers.shape[1] == logits.shape[1]:
            soft = self.answers.to(logits)[target]
        return torch.nn.functional.cross_entropy(logits, soft)

    def _remember(self, y: Tensor, target: Tensor) -> None:
        """Move the mean answer to each class that came towards this batch's answers."""
        if target.is_floating_point() or target.ndim != 1:
            return
        probabilities = torch.softmax(y.float(), 1)
        classes = y.shape[1]
        mean = self.answers
        if mean is None:
            mean = torch.full((classes, classes), 1 / classes, device=y.device)
        came = torch.nn.functional.one_hot(target, classes).to(probabilities)
        count = came.sum(0)[:, None]
        new = (came.T @ probabilities) / count.clamp(min=1)
        self.answers = torch.where(count > 0, self.decay * mean + (1 - self.decay) * new, mean)

    def _penalty(self, model: nn.Module) -> Tensor:
        """``alpha/2 |theta - mean|^2 - <slope, theta>``."""
        terms = []
        for name, p in _learned(model):
            if name in self.mean:
                gap = p - self.mean[name]
                terms.append(self.alpha / 2 * (gap * gap).sum() - (self.slope[name] * p).sum())
        return torch.stack(terms).sum()

    def _follow(self, model: nn.Module) -> None:
        """Slope and mean after a step of the optimiser; at first, none and the weights."""
        mean, slope = {}, {}
        with torch.no_grad():
            for name, p in _learned(model):
                previous = self.mean.get(name)
                if previous is None:
                    mean[name], slope[name] = p.detach().clone(), torch.zeros_like(p)
                    continue
                if previous.shape != p.shape:
                    raise ArgumentError(
                        "FPTT: the running means must be of the model, got one of "
                        f"{name} and shape {tuple(previous.shape)}. Is it the state of another run?"
                    )
                slope[name] = self.slope[name] - self.alpha * (p - previous)
                follows = (1 - self.beta) * previous + self.beta * p
                mean[name] = follows - self.beta / self.alpha * slope[name]
        self.mean, self.slope = mean, slope

    def state_dict(self) -> dict[str, Tensor]:
        """Mean and slope of each parameter, and the mean answers."""
        tensors = {f"mean/{n}": v for n, v in self.mean.items()}
        tensors |= {f"slope/{n}": v for n, v in self.slope.items()}
        return tensors if self.answers is None else tensors | {_SOFT: self.answers}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` gave."""
        new: dict[str, dict[str, Tensor]] = {kind: {} for kind in _KINDS}
        for key, value in state.items():
            kind, _, name = key.partition("/")
            if key != _SOFT and (kind not in new or not name):
                raise ArgumentError(
                    "FPTT: the learner's state must be means and slopes of parameters, got "
                    f"{key!r}. Is it that of another learner?"
                )
            if key != _SOFT:
                new[kind][name] = value
        if new["mean"].keys() != new["slope"].keys():
            raise ArgumentError(
                "FPTT: the learner's state must have a mean and a slope for each parameter, got "
                f"{len(new['mean'])} and {len(new['slope'])}. Is it that of another learner?"
            )
        self.mean, self.slope = new["mean"], new["slope"]
        self.answers = state.get(_SOFT)


def _of(rows: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    return (y, target) if bool(rows.all()) else (y[rows], target[rows])


def _learned(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]
