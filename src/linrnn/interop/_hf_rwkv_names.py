"""The tensors of RWKV-4 to 7: by which names, and in which form, checkpoints have them.

Their author's names are those that count here (``blocks.0.att.key.weight``). The public folders of
transformers' layout have longer ones for the same tensors, and those of RWKV-7, which are of the
package flash-linear-attention, other ones and other shapes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
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
_TIME = {
    **{f"norm.{p}": _same(f"ln1.{p}") for p in AFFINE},
    **{
        f"mixer.{p}.weight": _same(f"att.{p}.weight")
        for p in ("key", "value", "receptance", "output")
    },
}
_CHANNELS = {
    **{f"channel_mix_norm.{p}": _same(f"ln2.{p}") for p in AFFINE},
    **{f"channel_mix.{p}.weight": _same(f"ffn.{p}.weight") for p in ("key", "receptance", "value")},
}
_NORM = {f"mixer.norm_{p}": _same(f"att.ln_x.{p}") for p in AFFINE}
_MATRIX = {
    **_NORM,
    "mixer.gate.weight": _same("att.gate.weight"),
    "mixer.time_first": _same("att.time_faaaa"),
}
_MIXED = {f"channel_mix.mu_{i}": _row(f"ffn.time_mix_{i}") for i in "kr"}


def _low_rank(ours: str, i: str, *, bias: bool = True) -> dict[str, Entry]:
    """A map through a bottleneck, and the vector that it is added to."""
    matrices = {"down": _transposed(f"att.{i}1"), "up": _transposed(f"att.{i}2")}
    entries = {f"mixer.{ours}.{part}.weight": entry for part, entry in matrices.items()}
    return entries | ({f"mixer.{ours}.up.bias": _row(f"att.{i}0")} if bias else {})


_VERSIONS = {
    4: {
        **_CHANNELS,
        **{f"mixer.mu_{i}": _row(f"att.time_mix_{i}") for i in "kvr"},
        **{f"mixer.{p}": _same(f"att.{p}") for p in ("time_decay", "time_first")},
        **_MIXED,
    },
    5: {
        **_CHANNELS,
        **_MATRIX,
        **{f"mixer.mu_{i}": _row(f"att.time_mix_{i}") for i in "kvrg"},
        "mixer.time_decay": _same("att.time_decay"),
        **_MIXED,
    },
    6: {
        **_CHANNELS,
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
    7: {
        **_NORM,
        "mixer.mu": _stack([f"att.x_{i}" for i in "rwkvag"]),
        **_low_rank("decay", "w"),
        **_low_rank("rate", "a"),
        **_low_rank("gate", "g", bias=False),
        **{f"mixer.k_{i}": _row(f"att.k_{i}") for i in "ka"},
        "mixer.r_k": _same("att.r_k"),
        **{f"relu_mix_norm.{p}": _same(f"ln2.{p}") for p in AFFINE},
        **{f"relu_mix.{p}.weight": _same(f"ffn.{p}.weight") for p in ("key", "value")},
        "relu_mix.mu_k": _complement("ffn.x_k"),
    },
}
_LATER = {7: _low_rank("residual", "v")}  # in the blocks after the first
_UNREAD = tuple(f"blocks.0.att.v{i}" for i in range(3))  # which some files have, for nothing
_SIGNS = {
    7: "blocks.0.att.r_k",
    6: "blocks.0.att.time_maa_x",
    5: "blocks.0.att.time_mix_g",
    4: "blocks.0.att.time_first",
}

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
    """4, 5, 6 or 7, by the author's names of the tensors."""
    return next((version for version, sign in _SIGNS.items() if sign in names), None)


def entries(version: int, n_layers: int) -> dict[str, Entry]:
    """Every tensor of a model of ours."""
    inner = {
        f"blocks.{i}.{ours}": entry._replace(theirs=tuple(f"blocks.{i}.{n}" for n in entry.theirs))
        for i in range(n_layers)
        for ours, entry in (
            _TIME | _VERSIONS[version] | (_LATER.get(version, {}) if i else {})
        ).items()
    }
    return {ours: _same(theirs) for ours, theirs in _OUTER.items()} | inner


_FLA = {
    "embeddings": "emb",
    "lm_head": "head",
    "norm": "ln_out",
    "pre_norm": "ln0",
    "attn_norm": "ln1",
    "ffn_norm": "ln2",
    "attn": "att",
    **{"r_proj": "receptance", "k_proj": "key", "v_proj": "value", "o_proj": "output"},
    "g_norm": "ln_x",
}
"""Words of flash-linear-attention's names, and the author's; others are the same."""
_LORA = re.compile(r"(.*\.)([wavg])_lora\.lora\.(?:(0|2)\.weight|2\.(bias))")


def by_author(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of RWKV-7 by their author's names and shapes, of either naming.

    Args:
        weights: of ``model.layers.0.attn.w_lora.lora.0.weight`` and so on, or of
            ``blocks.0.att.w1``. What no block reads is left out.
    """
    named: dict[str, Tensor] = {}
    for name, x in weights.items():
        if name in _UNREAD:
            continue
        if not name.startswith(("model.", "lm_head.")):
            named[short(name)] = x
            continue
        name = re.sub(r"^layers\.", "blocks.", name.removeprefix("model."))
        if name.endswith(".attn.x_x") and x.ndim > 1:  # of an earlier version, (6, channels)
            rows = zip("rwkvag", x.flatten(0, -2), strict=False)
            named |= {f"{name[:-9]}.att.x_{i}": row[None, None] for i, row in rows}
        elif (match := _LORA.fullmatch(name)) is not None:
            number = {"0": "1", "2": "2"}.get(match[3], "0")
            word = f"{match[1]}{match[2]}{number}".replace(".attn.", ".att.")
            named[word] = x.mT if x.ndim == 2 else x
        else:
            named[".".join(_FLA.get(word, word) for word in name.split("."))] = x
    return named


def by_fla(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `by_author`: the names and shapes of flash-linear-attention."""
    words = {author: word for word, author in _FLA.items()}
    named = {}
    for name, x in weights.items():
        author = name.split(".")
        inner = author[-1]
        if author[0] == "blocks" and author[2] == "att" and re.fullmatch("[wavg][012]", inner):
            part = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}[inner[1]]
            place = f"attn.{inner[0]}_lora.lora.{part}"
            x = x.flatten() if inner[1] == "0" else x.mT
        elif author[0] == "blocks":
            of_ffn = author[2] == "ffn"  # whose words are the same
            place = ".".join(w if of_ffn else words.get(w, w) for w in author[2:])
            x = x.flatten() if inner in ("k_k", "k_a") or (of_ffn and inner == "x_k") else x
        else:
            place = ""
        layer = f"model.layers.{author[1]}.{place}"
        outer = f"{'' if author[0] == 'head' else 'model.'}{words.get(author[0])}.{inner}"
        named[layer if place else outer] = x.contiguous()
    return named
