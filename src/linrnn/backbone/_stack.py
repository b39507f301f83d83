"""The blocks of a stack, and what lies between its tiers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from torch import nn

from linrnn.backbone.pattern import Choice, label
from linrnn.backbone.tiers import Shape
from linrnn.block import Block, has_width
from linrnn.mixers import Mixer
from linrnn.nn import Resample


class Stack(NamedTuple):
    """Makes the modules of a stack."""

    d_model: int
    shape: Shape
    bidirectional: bool
    factory: Mapping[str, Any]

    def blocks(
        self,
        choices: Iterable[Choice],
        kinds: Sequence[str],
        d_ffn: int | None,
        out_norm: Collection[str],
        parts: Mapping[str, Any],
    ) -> nn.ModuleList:
        """The blocks, in the order in which they are read; those of a tier are as wide as it is."""
        blocks, factory = nn.ModuleList(), self.factory
        with_width = [kind for kind in kinds if has_width(kind)]
        without = set(kinds).difference(with_width) if with_width else ()
        for choice, depth, kind in zip(choices, self.shape.depths(), cycle(kinds), strict=False):
            times = self.shape.expand**depth
            layer = choice.build(times * self.d_model, both_ways=self.bidirectional, **factory)
            width = None if d_ffn is None or kind in without else times * d_ffn
            place: dict[str, Any] = {name: choice.place[name] for name in ("layer", "n_layers")}
            place |= {"kind": kind, "out_norm": label(choice.mixer) in out_norm}
            blocks.append(Block(layer, d_ffn=width, **place, **parts, **factory))
        return blocks

    def joints(self, mixers: Sequence[Mixer]) -> nn.ModuleList:
        """The modules that pool the steps between each two tiers."""
        joints, depths, expand = nn.ModuleList(), self.shape.depths(), self.shape.expand
        for tier, factor in enumerate(self.shape.tiers):
            timed = any(m.timed for m, k in zip(mixers, depths, strict=True) if k > tier)
            width = expand**tier * self.d_model
            joints.append(Resample(width, factor, expand=expand, timed=timed, **self.factory))
        return joints
