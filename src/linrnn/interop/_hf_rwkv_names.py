"""The tensors of RWKV-4, 5 and 6: by which names, and in which form, checkpoints have them.

Their author's names are those that count here (``blocks.0.att.key.weight``). The public folders of
transformers' layout have longer ones for the same tensors.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linrnn.interop._hf_layouts import AFFINE


class Entry(NamedTuple):
    """A tensor of ours, and what a checkpoint has of it in each block."""

    theirs: tuple[str, ...]
    read: Callable[..., Tensor]
    """Ours, of theirs."""
    write: Callable[[Tensor], Sequence[Tensor]]
    """Theirs, in their shapes, of ours."""


def _same(name: str) -> Entry:
    return Entry((name,), lambda x: x, lambda x: (x,))


def _row(name: str) -> Entry:
    """A vector, which is stored as (1, 1, channels)."""
    return Entry((name,), lambda x: x.view(-1), lambda x: (x.view(1, 1, -1),))


def _complement(name: str) -> Entry:
    """The part of the previous step, ours being that of the current one."""
    return Entry((name,), lambda x: 1 - x.view(-1), lambda x: (1 - x.view(1, 1, -1),))


def _transposed(name: str) -> Entry:
    """A matrix that stands behind its vector."""
    return Entry((name,), lambda x: x.T, lambda x: (x.T,))


def _stack(names: Sequence[str]) -> Entry:
    """Vectors that are rows of one matrix of ours."""
    return Entry(
        tuple(names),
        lambda *x: torch.cat(x).squeeze(1),
        lambda x: x[:, None, None].unbind(),
    )


_OUTER = {
    "encoder.weight": "emb.weight",
    **{f"encoder_norm.{p}": f"blocks.0.ln0.{p}" for p in AFFINE},
    **{f"final_norm.{p}": f"ln_out.{p}" for p in AFFINE},
    "head.weight": "head.weight",
}
_BLOCK = {
    **{f"norm.{p}": _same(f"ln1.{p}") for p in AFFINE},
    **{f"channel_mix_norm.{p}": _same(f"ln2.{p}") for p in AFFINE},
    **{
        f"mixer.{p}.weight": _same(f"att.{p}.weight")
        for p in ("key", "value", "receptance", "output")
    },
    **{f"channel_mix.{p}.weight": _same(f"ffn.{p}.weight") for p in ("key", "receptance", "value")},
}
_MATRIX = {
    "mixer.gate.weight": _same("att.gate.weight"),
    **{f"mixer.norm_{p}": _same(f"att.ln_x.{p}") for p in AFFINE},
    "mixer.time_first": _same("att.time_faaaa"),
}
_MIXED = {f"channel_mix.mu_{i}": _row(f"ffn.time_mix_{i}") for i in "kr"}
_VERSIONS = {
    4: {
        **{f"mixer.mu_{i}": _row(f"att.time_mix_{i}") for i in "kvr"},
        **{f"mixer.{p}": _same(f"att.{p}") for p in ("time_decay", "time_first")},
        **_MIXED,
    },
    5: {
        **_MATRIX,
        **{f"mixer.mu_{i}": _row(f"att.time_mix_{i}") for i in "kvrg"},
        "mixer.time_decay": _same("att.time_decay"),
        **_MIXED,
    },
    6: {
        **_MATRIX,
        "mixer.mu_x": _row("att.time_maa_x"),
        "mixer.mu": _stack([f"att.time_maa_{i}" for i in "wkvrg"]),
        "mixer.mix_down.weight": _transposed("att.time_maa_w1"),
        "mixer.mix_up": _same("att.time_maa_w2"),
        "mixer.time_decay": _row("att.time_decay"),
        "mixer.decay.down.weight": _transposed("att.time_decay_w1"),
        "mixer.decay.up.weight": _transposed("att.time_decay_w2"),
        **{f"channel_mix.mu_{i}": _complement(f"ffn.time_maa_{i}") for i in "kr"},
    },
}
_SIGNS = {6: "blocks.0.att.time_maa_x", 5: "blocks.0.att.time_mix_g", 4: "blocks.0.att.time_first"}

_SHORT = (
    (re.compile(r"rwkv\."), ""),
    (re.compile(r"embeddings\."), "emb."),
    (re.compile(r"(blocks\.\d+)\.pre_ln\."), r"\1.ln0."),
    (re.compile(r"(blocks\.\d+)\.attention\."), r"\1.att."),
    (re.compile(r"(blocks\.\d+)\.feed_forward\."), r"\1.ffn."),
)
_MIX = re.compile(r"(.*\.time_mix_[kvrg])(?:ey|alue|eceptance|ate)")


def short(name: str) -> str:
    """The author's name of a tensor that may have the longer one.

    Example:
        >>> short("rwkv.blocks.3.attention.time_mix_gate"), short("blocks.3.att.time_mix_g")
        ('blocks.3.att.time_mix_g', 'blocks.3.att.time_mix_g')
    """
    for long, replacement in _SHORT:
        match = long.match(name)
        name = match.expand(replacement) + name[match.end() :] if match else name
    mix = _MIX.fullmatch(name)
    return mix[1] if mix else name


def version_of(names: Sequence[str]) -> int | None:
    """4, 5 or 6, by the author's names of the tensors."""
    return next((version for version, sign in _SIGNS.items() if sign in names), None)


def entries(version: int, n_layers: int) -> dict[str, Entry]:
    """Every tensor of a model of ours."""
    inner = {
        f"blocks.{i}.{ours}": entry._replace(theirs=tuple(f"blocks.{i}.{n}" for n in entry.theirs))
        for i in range(n_layers)
        for ours, entry in (_BLOCK | _VERSIONS[version]).items()
    }
    return {ours: _same(theirs) for ours, theirs in _OUTER.items()} | inner
