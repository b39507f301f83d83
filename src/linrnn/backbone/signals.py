"""Signals between the layers of a stack: those carried from layer to layer, and shared parts.

A mixer says on its class what it ``carries`` and ``shares``, and a stack that it makes is told what
it ``receives`` (`linrnn.mixers.Mixer`). The first layer of those that carry a signal makes it, for
each step anew, and later ones of the same run read it; a run is a stack's blocks of one rate. The
stack itself makes one before any layer: ``embedding``, what the first block of the run reads.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn

from linrnn.errors import ArgumentError
from linrnn.mixers import Mixer
from linrnn.typing import Signals

AHEAD = ("embedding", "ahead.embedding", "back.embedding")
"""Signals that a stack makes before its first layer: what that reads, also for two directions."""


class Shared(nn.ModuleList):
    """The parts that layers of a stack have in common, one for each run and class of mixers.

    Args:
        where: who asks, for the message.
        mixers: of the layers, first to last.
        runs: the number of the run that each is in; None: there is one.
        ahead: signals that the stack makes before its first layer.

    Raises:
        ArgumentError: a layer receives what none before it carries, what layers carry or share has
            several shapes, or there is a single layer to share.
    """

    def __init__(
        self,
        where: str,
        mixers: Sequence[Mixer],
        runs: Sequence[int] | None = None,
        ahead: Collection[str] = (),
    ) -> None:
        super().__init__()
        runs = [0] * len(mixers) if runs is None else runs
        _check_carried(where, mixers, runs, ahead)
        layers: dict[tuple[int, type[Mixer]], list[int]] = {}
        for place, (mixer, run) in enumerate(zip(mixers, runs, strict=True)):
            if set(mixer.receives) & set(mixer.shares):
                layers.setdefault((run, type(mixer)), []).append(place)
        self.places = list(layers.values())
        for places in self.places:
            sharing = [mixers[place] for place in places]
            _check_shared(where, sharing)
            self.append(sharing[0].shared_part(sharing))

    def forward(self, n_layers: int) -> list[dict[str, Tensor]]:
        """The shared signals of each layer of the stack, by name; most layers have none."""
        signals: list[dict[str, Tensor]] = [{} for _ in range(n_layers)]
        for part, places in zip(self, self.places, strict=True):
            for place, shared in zip(places, part(), strict=True):
                signals[place] = shared
        return signals


def handed(mixer: Mixer, carried: Signals, shared: Signals) -> dict[str, Tensor] | None:
    """The signals that a layer of a stack is given; None for one that has no part in any.

    Args:
        mixer: of the layer.
        carried: what earlier layers of the run have made.
        shared: what `Shared` has for this layer.
    """
    if not (mixer.carries or mixer.receives):
        return None
    return {n: shared[n] if n in mixer.shares else carried[n] for n in mixer.receives}


def made_ahead(z: Tensor) -> dict[str, Tensor]:
    """The signals of `AHEAD`, of the input of the first layer."""
    return dict.fromkeys(AHEAD, z)


def receives(
    classes: Sequence[type[Mixer]], runs: Sequence[int] | None, ahead: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """Names of the signals that each layer receives, in a stack of these classes.

    Args:
        classes: of the mixers, first to last.
        runs, ahead: as of `Shared`.
    """
    layers = list(zip(classes, [0] * len(classes) if runs is None else runs, strict=True))
    count, available = Counter(layers), {(run, name) for _, run in layers for name in ahead}
    received = []
    for cls, run in layers:
        carried = tuple(name for name in cls.carries if (run, name) in available)
        received.append((*carried, *(cls.shares if count[cls, run] > 1 else ())))
        available |= {(run, name) for name in cls.carries}
    return received


def _check_carried(
    where: str, mixers: Sequence[Mixer], runs: Sequence[int], ahead: Collection[str]
) -> None:
    makers: dict[tuple[int, str], Mixer] = {}
    for place, (mixer, run) in enumerate(zip(mixers, runs, strict=True)):
        for name in mixer.carries:
            if name not in mixer.receives:
                makers[run, name] = mixer
                continue
            label = f"{where}: layer {place}, a {type(mixer).__name__}, must"
            maker = makers.get((run, name))
            if maker is None and name in ahead:
                continue
            if maker is None:
                raise ArgumentError(
                    f"{label} receive {name!r} from a layer before it of the same rate, got none. "
                    "Put one without `receives` first."
                )
            sizes, maker_sizes = _sizes(mixer, name), _sizes(maker, name)
            if sizes != maker_sizes:
                raise ArgumentError(
                    f"{label} have the signal {name!r} of the layer that makes it, "
                    f"{maker_sizes}, got {sizes}. Give both the same options."
                )


def _check_shared(where: str, mixers: Sequence[Mixer]) -> None:
    name = next(n for n in mixers[0].shares if n in mixers[0].receives)
    sizes = [_sizes(mixer, name) for mixer in mixers]
    if len(mixers) == 1 or any(size != sizes[0] for size in sizes):
        raise ArgumentError(
            f"{where}: layers of {type(mixers[0]).__name__} that share {name!r} must be two or "
            f"more of the same sizes, got {sizes}. Give them the same options."
        )


def _sizes(mixer: Mixer, name: str) -> dict[str, Any]:
    return dict(mixer.signal_spec()[name].axes)
