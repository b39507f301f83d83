"""The order in which the blocks of a stack are read, at one rate or at several: SaShiMi's tiers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from torch import Tensor

from linrnn.backbone.signals import handed, made_ahead
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    check_positive_int,
    show,
)
from linrnn.nn import Beneath, Resample
from linrnn.typing import Signals, State

Marks: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
"""``(reset, dt, valid)`` of every step."""

Call: TypeAlias = Callable[
    [Any, Tensor, State, Marks, Signals | None], tuple[Tensor, State, Signals]
]
"""``(block, z, state, marks, signals)`` to ``(z, state, signals)``, of z (batch, time, width).

Signals are those that `linrnn.backbone.signals.handed` gives, and those that the block makes."""


def as_tiers(where: str, tiers: Any) -> tuple[int, ...]:
    """Factors as a tuple; `Shape.check` says whether they make a stack."""
    if isinstance(tiers, (tuple, list)):
        return tuple(tiers)
    fix = f" Say tiers=({tiers},)." if isinstance(tiers, int) else " () is none."
    raise ArgumentTypeError(
        f"{where}: tiers must be a tuple of integers of at least 2, got {show(tiers)}.{fix}"
    )


class Shape(NamedTuple):
    """How many blocks there are at which rate."""

    n_layers: int
    """Layers of each tier, on each way."""
    tiers: tuple[int, ...]
    """Steps that are pooled between a tier and the next; none where there is one rate."""
    expand: int
    unet: bool
    """Whether there are blocks before the pooling as well."""

    def check(self, where: str) -> None:
        """Raise `ArgumentError` for what makes no stack."""
        for factor in self.tiers:
            if isinstance(factor, bool) or not isinstance(factor, int) or factor < 2:
                raise ArgumentError(
                    f"{where}: tiers must be integers of at least 2, got {self.tiers!r:.80}."
                )
        check_positive_int(where, expand=self.expand)
        if self.unet and not self.tiers:
            raise ArgumentError(
                f"{where}: unet must be False without tiers, got True. Say tiers=(4, 4)."
            )

    def ways(self) -> int:
        """How often there are ``n_layers`` blocks."""
        return len(self._order())

    def depths(self) -> list[int]:
        """The tier of each block, in the order of reading.

        Example:
            >>> Shape(1, (4, 4), 2, False).depths(), Shape(1, (4, 4), 2, True).depths()
            ([2, 1, 0], [0, 1, 2, 1, 0])
        """
        return [tier for tier in self._order() for _ in range(self.n_layers)]

    def runs(self) -> list[int]:
        """The run of each block: `n_layers` in a row at one rate; no signals go between runs."""
        return [run for run in range(self.ways()) for _ in range(self.n_layers)]

    def _order(self) -> list[int]:
        down = [*range(len(self.tiers))]
        return [*(down if self.unet else []), len(down), *reversed(down)]


class Reader(NamedTuple):
    """Reads a stack of blocks and what lies between its tiers."""

    shape: Shape
    call: Call
    graph: bool
    """Whether a graph is made of one step, which cannot look at the state."""
    single: bool = False
    """Whether blocks are called for one step, whose signals have no axis of time."""

    def read(
        self,
        blocks: Sequence[Any],
        between: Sequence[Any],
        z: Tensor,
        state: dict[str, list[State]],
        shared: Sequence[Signals],
        marks: Marks = (None, None, None),
        *,
        fresh: bool = False,
    ) -> tuple[Tensor, dict[str, list[State]]]:
        """Read these blocks, and what is between their tiers.

        Args:
            blocks: in the order of `Shape.depths`.
            between: from the outermost tier.
            z: (batch, time, width).
            state: ``layers`` and ``tiers``, one each.
            shared: what `linrnn.backbone.signals.Shared` has for each block.
            marks: boolean resets (batch, time), times between steps (batch, time), and which steps
                are no padding, boolean (batch, time); None each where there is none.
            fresh: whether the state is known to be that before the first step.
        """
        layers, n = state["layers"], self.shape.n_layers
        if not between:
            z, layers = self._run(blocks, z, layers, shared, marks)
            return z, {"layers": layers, "tiers": []}
        first = n if self.shape.unet else 0
        skips: list[Tensor] = [z]
        z, down = self._run(blocks[:first], z, layers[:first], shared[:first], marks, skips.append)
        below = {"layers": layers[first:-n], "tiers": state["tiers"][1:]}
        beneath = self._beneath(
            blocks[first:-n], between[1:], shared[first:-n], fresh=fresh and marks[0] is None
        )
        mine, part = cast(dict[str, Tensor], state["tiers"][0]), cast(Resample, between[0])
        if self.graph:
            when = None if marks[1] is None else marks[1][:, 0]
            y, mine, below = part.step(z[:, 0], mine, cast(State, below), beneath, when)  # type: ignore[assignment]
            y = y[:, None]
        else:
            named: dict[str, Any] = dict(zip(("reset", "dt", "valid"), marks, strict=True))
            y, mine, below = part(z, mine, cast(State, below), beneath, **named, fresh=fresh)
        z = y + skips.pop()
        last = blocks[-n:], z, layers[-n:], shared[-n:], marks
        if self.shape.unet:
            z, up = self._run(*last, add=skips)
        else:
            y, up = self._run(*last)
            z = y + z
        tiers = [cast(State, mine), *below["tiers"]]
        return z, {"layers": [*down, *below["layers"], *up], "tiers": tiers}

    def _run(
        self,
        blocks: Sequence[Any],
        z: Tensor,
        layers: Sequence[State],
        shared: Sequence[Signals],
        marks: Marks,
        note: Callable[[Tensor], None] | None = None,
        add: list[Tensor] | None = None,
    ) -> tuple[Tensor, list[State]]:
        """Blocks of one rate, with the signals that go between them.

        Args:
            blocks, z, layers, shared, marks: as of `read`.
            note: is told what each block gives.
            add: to that, the last to the first.
        """
        new = []
        carried = made_ahead(z[:, 0] if self.single else z)
        for block, previous_state, common in zip(blocks, layers, shared, strict=True):
            signals = handed(block.mixer, carried, common)
            z, next_state, outgoing = self.call(block, z, previous_state, marks, signals)
            if note is not None:
                note(z)
            z = z if add is None else z + add.pop()
            carried = {**carried, **outgoing}
            new.append(next_state)
        return z, new

    def _beneath(
        self,
        blocks: Sequence[Any],
        between: Sequence[Any],
        shared: Sequence[Signals],
        *,
        fresh: bool,
    ) -> Beneath:
        """The stack below the outermost tier; the innermost has a skip over all of its blocks."""

        def read(z: Tensor, state: State, *marks: Tensor | None) -> tuple[Tensor, State]:
            every: Any = (*marks, None, None, None)[:3]
            y, next_state = self.read(
                blocks, between, z, cast(Any, state), shared, every, fresh=fresh
            )
            return (y if between else y + z), cast(State, next_state)

        def start(rows: int) -> State:
            modules = {"layers": blocks, "tiers": between}
            return cast(State, {k: [x.init_state(rows) for x in v] for k, v in modules.items()})

        return Beneath(read, start)


def read_step(
    block: Any, z: Tensor, state: State, marks: Marks, signals: Signals | None
) -> tuple[Tensor, State, Signals]:
    """A `Call` of one step, which has no reset: in one native call where it can be."""
    done = None
    if marks[1] is None and signals is None:
        done = recorded_step(block, block.step, z[:, 0], state)
    if done is None:
        return read_in_graph(block, z, state, marks, signals)
    return done[0][:, None], done[1], {}


def read_in_graph(
    block: Any, z: Tensor, state: State, marks: Marks, signals: Signals | None
) -> tuple[Tensor, State, Signals]:
    """The same as it is, for those who record it. Signals are of steps, and have no time."""
    dt = marks[1]
    times = dt[:, 0] if dt is not None and block.mixer.timed else None
    y, state, *outgoing = block.step(z[:, 0], state, dt=times, signals=signals)
    return y[:, None], state, outgoing[0] if outgoing else {}


def joined(stack: dict[str, list[State]], pool: dict[str, Tensor]) -> dict[str, State]:
    """The state of a model: the inverse of `split_state`."""
    state: dict[str, Any] = {"layers": stack["layers"], "pool": pool}
    return {**state, "tiers": stack["tiers"]} if stack.get("tiers") else state


def split_state(state: State, n_layers: int, n_tiers: int) -> dict[str, Any]:
    """The parts of a state: layers, what is between tiers, pooling."""
    names = {"layers", "pool", *(["tiers"] if n_tiers else [])}
    if not (isinstance(state, dict) and names <= set(state)):
        words = ", ".join(f"{name!r}: ..." for name in sorted(names))
        raise DTypeError(
            f"SequenceModel: state must be what this model returned ({{{words}}}), got "
            f"{type(state).__name__}. A new sequence starts from model.init_state(batch_size)."
        )
    parts = {name: list(cast(list[State], state[name])) for name in sorted(names - {"pool"})}
    for name, number in (("layers", n_layers), ("tiers", n_tiers)):
        if len(parts.get(name, ())) != number:
            raise ArgumentError(
                f"SequenceModel: state must hold {number} {name} like the model, got "
                f"{len(parts[name])}."
            )
    return {**parts, "pool": state["pool"]}
