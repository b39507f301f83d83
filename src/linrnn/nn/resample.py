"""Between two rates: several steps become one, and what was made of it comes back a group later."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from linrnn import state as states
from linrnn.compute.layout import like
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.nn.linear import Linear
from linrnn.state_spec import Spec, check_state, closed, initial, integer, opened, real
from linrnn.typing import State


class Beneath(NamedTuple):
    """Reads the groups, at the lower rate."""

    read: Callable[..., tuple[Tensor, State]]
    """``(groups, state, reset, dt, valid)`` to ``(y, state)``; groups (batch, groups, width), and
    the others (batch, groups) or None."""
    start: Callable[[int], State]
    """Its state before the first group, for a number of rows."""


class Resample(nn.Module):
    r"""Down- and up-pooling of SaShiMi, with everything between them.

    Equation::

        g_k = W_down [x_{kp}, ..., x_{kp+p-1}] + b_down        group k, p = factor
        h_k = beneath(g_0, ..., g_k)
        [y_{(k+1)p}, ..., y_{(k+1)p+p-1}] = W_up h_k + b_up    y_0, ..., y_{p-1} = 0

    What is made of a group is given out during the next one, so no output depends on a later
    input. Groups begin with the first step and anew at every reset, which drops the steps of a
    group that is not complete: rows may be at different places in their groups. A sequence may be
    of any length and cut anywhere; the state holds the steps of the group that is not complete yet,
    and what is given out during it.

    Args:
        d_model: channels of a step.
        factor: p, steps of a group, at least 2.
        expand: channels of a group, in multiples of ``d_model``.
        timed: whether times between steps matter beneath. A group's is the mean of its steps', so
            that times of 1 are none.
        device, dtype: of the parameters, as in torch.nn.

    Example:
        >>> as_is = Beneath(lambda g, state, *_: (g, state), lambda rows: ())
        >>> pair = Resample(4, 2)
        >>> y, state, _ = pair(torch.randn(3, 7, 4), pair.init_state(3), (), as_is)
        >>> y.shape, state["count"]
        (torch.Size([3, 7, 4]), tensor([1, 1, 1]))
    """

    def __init__(
        self,
        d_model: int,
        factor: int,
        *,
        expand: int = 1,
        timed: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive_int("Resample", d_model=d_model, expand=expand)
        if isinstance(factor, bool) or not isinstance(factor, int) or factor < 2:
            raise ArgumentError(
                f"Resample: factor must be an integer of at least 2, got {factor!r}."
            )
        self.d_model, self.factor, self.expand, self.timed = d_model, factor, expand, timed
        group, below = factor * d_model, expand * d_model
        self.down = Linear(group, below, device=device, dtype=dtype)
        self.up = Linear(below, group, device=device, dtype=dtype)

    def state_spec(self) -> Spec:
        """Steps of the group so far, those inputs, what is given out meanwhile, and the times."""
        past = self.factor - 1
        spec: dict[str, Any] = {
            "count": integer(),
            "past": real(past=past, d_model=self.d_model),
            "ahead": real(steps=self.factor, d_model=self.d_model),
        }
        return {**spec, "times": real(start=1.0, past=past)} if self.timed else spec

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """The state before the first step: no step of a group, and zeros to give out."""
        like, spec = self.down.weight, self.state_spec()
        state: dict[str, Tensor] = initial("Resample", spec, batch_size, like, device, dtype)
        return state

    def forward(
        self,
        x: Tensor,
        state: dict[str, Tensor],
        below: State,
        beneath: Beneath,
        *,
        reset: Tensor | None = None,
        dt: Tensor | None = None,
        valid: Tensor | None = None,
        fresh: bool = False,
    ) -> tuple[Tensor, dict[str, Tensor], State]:
        """Read a sequence.

        Args:
            x: (batch, time, d_model).
            state: as `state_spec` says.
            below: the state of what is beneath.
            beneath: what reads the groups.
            reset: boolean (batch, time), or None.
            dt: times between steps (batch, time), or None.
            valid: boolean (batch, time), False at padding, or None. A group is valid where its last
                step is.
            fresh: whether the state is known to be that before the first step.

        Returns:
            ``(y, state, below)``.

        Raises:
            ArgumentError: rows at different places in their groups, and a state beneath whose size
                grows with what was read; a number of steps that no group has.
            ShapeError, DTypeError, DeviceError: a state that does not fit.
        """
        state = self._checked(state, x)
        if self.timed and dt is None and (fresh or bool((state["times"] == 1).all())):
            times = None
        else:
            times = self._times(x, state, dt) if self.timed else None
        place = 0 if fresh else _place(state["count"], self.factor)
        if place is not None and (reset is None or not bool(reset.any())):
            return self._read_aligned(x, state, below, beneath, times, valid, place)
        return self._read_ragged(x, state, below, beneath, reset, times, valid)

    def step(
        self, x_t: Tensor, state: dict[str, Tensor], below: State, beneath: Beneath, dt: Any = None
    ) -> tuple[Tensor, dict[str, Tensor], State]:
        """Read one step in a graph, which cannot look at places.

        Every step is computed as if it completed a group, and that is kept where it does.
        """
        state = self._checked(state, x_t)
        p, count = self.factor, state["count"]
        window = torch.cat([state["past"].to(x_t.dtype), x_t[:, None]], 1)
        times = None
        if self.timed and dt is not None:
            times = torch.cat([state["times"], dt[:, None].to(state["times"].dtype)], 1)
        mean = None if times is None else times.mean(1)[:, None]
        group = self.down(window.flatten(1)).to(x_t.dtype)  # (batch, width below)
        h, next_below = beneath.read(group[:, None], below, None, mean, None)
        full = count == p - 1
        below = _choose(full, next_below, below)
        outputs = self.up(h[:, 0]).unflatten(1, (p, -1)).to(x_t.dtype)  # (batch, p, d_model)
        at = count[:, None, None].expand(-1, 1, self.d_model)
        y = state["ahead"].gather(1, at)[:, 0].to(outputs.dtype)
        ahead = _choose(full, outputs, state["ahead"])
        next_state = {"count": torch.where(full, 0, count + 1), "ahead": ahead}
        n_past = torch.where(full, 0, count + 1)
        next_state["past"] = _last(window[:, 1:], n_past).to(state["past"].dtype)
        if self.timed:
            past = torch.ones_like(state["times"]) if times is None else times[:, 1:]
            next_state["times"] = _last(past, n_past, 1.0)
        return y, self._as_state(state, next_state), below

    def _checked(self, state: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        spec, dtype = self.state_spec(), self.down.weight.dtype
        checked = check_state("Resample", state, spec, x.shape[0], x.device, dtype)
        return cast(dict[str, Tensor], opened(checked, spec))

    def _as_state(self, state: dict[str, Tensor], values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the new state in the order and the dtypes of the previous one."""
        stored = {name: values[name].to(h.dtype) for name, h in state.items()}
        return cast(dict[str, Tensor], closed(stored, self.state_spec()))

    def _times(self, x: Tensor, state: dict[str, Tensor], dt: Tensor | None) -> Tensor:
        """Times of the last ``factor - 1`` steps and of these."""
        past = state["times"]
        dt = past.new_ones(x.shape[:2]) if dt is None else dt.to(past.dtype)
        return torch.cat([past, dt], 1)

    def _read_aligned(
        self,
        x: Tensor,
        state: dict[str, Tensor],
        below: State,
        beneath: Beneath,
        times: Tensor | None,
        valid: Tensor | None,
        place: int,
    ) -> tuple[Tensor, dict[str, Tensor], State]:
        """All rows are at one place in their groups, and none is reset."""
        p, (batch, time, width) = self.factor, x.shape
        x = torch.cat([state["past"][:, p - 1 - place :].to(x.dtype), x], 1)
        n = (place + time) // p
        ahead = state["ahead"]
        if n or torch.compiler.is_compiling():
            groups = self.down(x[:, : n * p].reshape(batch, n, p * width)).to(x.dtype)
            means = None
            if times is not None:
                means = times[:, p - 1 - place :][:, : n * p].reshape(batch, n, p).mean(2)
            if valid is not None:
                valid = valid[:, p - 1 - place :: p][:, :n]
            h, below = beneath.read(groups, below, None, means, valid)
            outputs = self.up(h).reshape(batch, n * p, width).to(x.dtype)  # (batch, n p, width)
            ahead = torch.cat([ahead.to(outputs.dtype), outputs], 1)
        remaining = x[:, n * p :]
        next_state = {
            "count": torch.full_like(state["count"], place + time - n * p),
            "past": nn.functional.pad(remaining, (0, 0, p - 1 - remaining.shape[1], 0)),
            "ahead": ahead[:, n * p :],
        }
        if self.timed:
            last = state["times"] if times is None else times[:, time:]
            next_state["times"] = last if times is None else _last(last, next_state["count"], 1.0)
        return ahead[:, place : place + time], self._as_state(state, next_state), below

    def _read_ragged(
        self,
        x: Tensor,
        state: dict[str, Tensor],
        below: State,
        beneath: Beneath,
        reset: Tensor | None,
        times: Tensor | None,
        valid: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor], State]:
        """Every row has its own groups."""
        p, (batch, time, width) = self.factor, x.shape
        cut = _Cut.of(state["count"], reset, batch, time, p)
        x = torch.cat([state["past"].to(x.dtype), x], 1)
        window = cut.steps[:, None] + torch.arange(p, device=x.device)  # (all groups, p)
        groups = self.down(x[cut.rows[:, None], window].flatten(1)).to(x.dtype)
        means = None if times is None else cut.packed(times[cut.rows[:, None], window].mean(1))
        counted = None if valid is None else cut.packed(valid[cut.rows, cut.steps])
        h, below = _in_pieces(
            beneath, cut.packed(groups), cut.groups, below, cut.packed(cut.begins), means, counted
        )
        outputs = self.up(h).unflatten(2, (p, -1)).to(x.dtype)  # (batch, groups, p, width)
        # (batch, groups + 1, p, width)
        ahead = torch.cat([state["ahead"].to(outputs.dtype)[:, None], outputs], 1)
        # (batch, time + 1, width)
        index = (cut.done * p + cut.place)[..., None].expand(-1, -1, width)
        continues = cut.goes_on[..., None]
        y = torch.where(continues[:, :-1], ahead.flatten(1, 2).gather(1, index[:, :-1]), 0)
        count = cut.place[:, -1]
        mine = ahead[torch.arange(batch, device=x.device), cut.groups]  # (batch, p, width)
        next_state = {
            "count": count,
            "past": _last(x[:, time:], count),
            "ahead": torch.where(continues[:, -1:], mine, 0),
        }
        if self.timed:
            last = state["times"] if times is None else times[:, time:]
            next_state["times"] = last if times is None else _last(last, count, 1.0)
        if bool(cut.unread.any()):
            start = beneath.start(batch)
            below = start if bool(cut.unread.all()) else _choose(cut.unread, start, below)
        return y, self._as_state(state, next_state), below


class _Cut(NamedTuple):
    """Where the groups of each row are; with one step more than there are, the next one."""

    place: Tensor
    """(batch, time + 1): of a step in its group."""
    done: Tensor
    """(batch, time + 1): groups that were completed before it in this call."""
    goes_on: Tensor
    """(batch, time + 1): whether its sequence has a group before its own."""
    rows: Tensor
    """(all groups,): the row of each, row after row."""
    steps: Tensor
    """(all groups,): the step that completes it."""
    begins: Tensor
    """(all groups,): whether it is the first of a sequence that began in this call."""
    groups: Tensor
    """(batch,): how many a row has."""
    unread: Tensor
    """(batch,): whether the last sequence began in this call and has no group."""

    @classmethod
    def of(cls, count: Tensor, reset: Tensor | None, batch: int, time: int, p: int) -> "_Cut":
        steps = torch.arange(time + 1, device=count.device).expand(batch, -1)
        cuts = steps.new_zeros(batch, time + 1)
        if reset is not None:
            cuts[:, :-1] = reset
        sequence = cuts.cumsum(1)
        first = torch.where(cuts.bool(), steps, -count[:, None]).cummax(1).values
        since = steps - first
        place = since % p
        ends = (place == p - 1)[:, :-1]
        groups = ends.sum(1)
        done = nn.functional.pad(ends.cumsum(1), (1, 0))
        rows, last = ends.nonzero(as_tuple=True)
        mine = sequence[rows, last]
        previous = nn.functional.pad(mine[:-1], (1, 0))
        begins = mine != torch.where(done[rows, last] > 0, previous, 0)
        goes_on = (since >= p) | (sequence == 0)
        unread = ~goes_on[:, -1]
        return cls(place, done, goes_on, rows, last, begins, groups, unread)

    def packed(self, values: Tensor) -> Tensor:
        """Arrange values (all groups, ...) by rows: (batch, groups, ...), padded with zeros."""
        rank = self.done[self.rows, self.steps]
        max_groups = int(self.groups.max()) if len(self.groups) else 0
        padded = values.new_zeros(len(self.groups), max_groups, *values.shape[1:])
        return padded.index_put((self.rows, rank), values)


def _place(count: Tensor, p: int) -> int | None:
    """At which place in their groups all rows are, None where they differ."""
    first, last = (int(x) for x in count.aminmax()) if len(count) else (0, 0)
    if not 0 <= first <= last < p:
        raise ArgumentError(
            f"Resample: state['count'] must be in 0..{p - 1}, the steps of a group that is not "
            f"complete, got {first if first < 0 else last}. Begin with another state."
        )
    return first if first == last else None


def _in_pieces(
    beneath: Beneath,
    x: Tensor,
    lengths: Tensor,
    state: State,
    reset: Tensor,
    dt: Tensor | None,
    valid: Tensor | None,
) -> tuple[Tensor, State]:
    """Read rows of different lengths, in as many pieces as there are lengths."""
    begin, outputs = 0, []
    cut = reset if bool(reset.any()) else None
    for end in sorted(set(lengths.tolist()) - {0}):
        rows = (lengths >= end).nonzero().flatten()
        alone = len(rows) < len(lengths)
        arguments = [None if v is None else v[:, begin:end] for v in (x, cut, dt, valid)]
        part = state
        if alone:
            arguments = [None if v is None else v[rows] for v in arguments]
            part = states.select(state, rows)
        y, next_part = beneath.read(arguments[0], part, *arguments[1:])
        state = _put(state, rows, next_part) if alone else next_part
        outputs.append(y.new_zeros(len(lengths), *y.shape[1:]).index_copy(0, rows, y))
        begin = end
    return torch.cat(outputs, 1) if outputs else x, state


def _put(state: State, rows: Tensor, part: State) -> State:
    """The state with these rows replaced by those of ``part``."""

    def put(h: Tensor, new: Tensor) -> Tensor:
        if h.shape[1:] != new.shape[1:]:
            _refuse(h, new)
        return h.index_copy(0, rows, new.to(h.dtype))

    result: State = _both(put, state, part)
    return result


def _choose(rows: Tensor, state: State, alternative: State) -> Any:
    """The rows of one state, and the others of another."""

    def choose(h: Tensor, g: Tensor) -> Tensor:
        if h.shape != g.shape:
            _refuse(h, g)
        return torch.where(like(rows, h), h.to(g.dtype), g)

    return _both(choose, state, alternative)


def _both(function: Callable[[Tensor, Tensor], Tensor], state: State, second: State) -> Any:
    try:
        result: Any = tree_map(function, state, second)
    except ValueError as error:
        raise ArgumentError(_DIFFERENT.format("another structure")) from error
    return result


def _refuse(h: Tensor, new: Tensor) -> None:
    raise ArgumentError(_DIFFERENT.format(f"{tuple(h.shape[1:])} and {tuple(new.shape[1:])}"))


_DIFFERENT = (
    "Resample: rows must be at the same place in their groups where a state beneath grows with "
    "what was read, got states of {}. Read such rows apart, or take a mixer whose state has a "
    "fixed size."
)


def _last(x: Tensor, count: Tensor, fill: float = 0.0) -> Tensor:
    """The last ``count`` steps of each row, and ``fill`` for those before."""
    keep = torch.arange(x.shape[1], device=x.device) >= x.shape[1] - count[:, None]
    return torch.where(like(keep, x), x, fill)
