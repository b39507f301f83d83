"""Calls of the blocks of a stack, with what somebody else does around each."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from linrnn.backbone.tiers import Marks
from linrnn.block import Block
from linrnn.typing import Signals, State

Around: TypeAlias = Callable[
    [Callable[..., tuple[Tensor, State]], Tensor, State], tuple[Tensor, State]
]
"""Calls a block for `SequenceModel.features_of`. The tree beside z holds the block's state,
and of a layer with signals these too, so that nothing goes in or comes out but by arguments."""


def read_block(
    block: Block,
    z: Tensor,
    state: State,
    marks: Marks,
    signals: Signals | None,
    *,
    lengths: Tensor | None,
    around: Around | None,
) -> tuple[Tensor, State, Signals]:
    """A call of a block as `linrnn.backbone.tiers.Call`; ``around`` sees one tree beside z."""
    reset, dt, valid = marks
    times = dt if block.mixer.timed else None
    call = partial(block, reset=reset, lengths=lengths, dt=times, valid=valid)
    if signals is None:
        y, state = call(z, state) if around is None else around(call, z, state)
        return y, state, {}

    def with_signals(z: Tensor, tree: Any) -> tuple[Tensor, Any]:
        y, state, outgoing = call(z, tree["state"], signals=tree["signals"])
        return y, {"state": state, "signals": outgoing}

    tree: Any = {"state": state, "signals": signals}
    y, tree = with_signals(z, tree) if around is None else around(with_signals, z, tree)
    return y, tree["state"], tree["signals"]


def pairs(
    x: Tensor, reset: Tensor | None, lengths: Tensor | None, dt: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Both documents of each pair as rows of one batch."""
    ends, cut, dt = (None if v is None else v.flatten(0, 1) for v in (lengths, reset, dt))
    return x.flatten(0, 1), cut, ends, dt
