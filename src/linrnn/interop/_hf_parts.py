"""Parts that many families have: attention, Mamba-2, feed-forward networks; options and weights."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from linrnn.errors import DataError
from linrnn.interop._hf_layouts import AFFINE, require
from linrnn.interop._hf_weights import Weight, equal, plus_one, renamed, turned, within

OUTER = {
    "encoder.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
"""Weights around the stack, by the names that most have."""


def layers(mixers: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of a stack: its mixers, layer by layer, and the options of those that it has."""
    of_stack = {name: options[name] for name in dict.fromkeys(mixers)}
    return {"mixer": ",".join(mixers), "mixer_options": of_stack}


def in_blocks(
    outer: Sequence[Weight], blocks: Sequence[Sequence[Weight]], theirs: str = "model.layers"
) -> list[Weight]:
    """Weights of a stack: those around it, and those of each layer."""
    weights = list(outer)
    for i, block in enumerate(blocks):
        weights += within(f"blocks.{i}.", f"{theirs}.{i}.", block)
    return weights


def attention_options(theirs: Any, **more: Any) -> dict[str, Any]:
    """Options of `linrnn.mixers.Attention` from the usual fields of a configuration.

    Args:
        theirs: the configuration.
        **more: of those that it has no usual field for; they come before the others.
    """
    heads = theirs.num_attention_heads
    width = getattr(theirs, "head_dim", None) or theirs.hidden_size // heads
    options = {
        "n_heads": heads,
        "d_head": width,
        "n_kv_heads": theirs.num_key_value_heads,
        "bias": bool(getattr(theirs, "attention_bias", False)),
    }
    if "d_rotary" not in more:
        options |= rotary_options(theirs, width)
    return options | more


def rotary_options(theirs: Any, d_head: int) -> dict[str, Any]:
    """Options of rotary positions; `check_rotary` says whether there are some for it."""
    rope = theirs.rope_parameters
    options: dict[str, Any] = {
        "d_rotary": int(d_head * rope.get("partial_rotary_factor", 1.0)),
        "base": float(rope["rope_theta"]),
    }
    kind = rope.get("rope_type", "default")
    if kind != "default":
        options |= {"scaling": kind, "factor": float(rope["factor"])}
    if kind in ("llama3", "yarn"):
        options["trained_length"] = int(rope["original_max_position_embeddings"])
    return options


_RAMPS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {
        **{"beta_fast": 32, "beta_slow": 1, "attention_factor": None, "mscale": None},
        **{"mscale_all_dim": None, "truncate": True},
    },
}
"""Rules for longer sequences that we have, by the values that ours has."""


def check_rotary(where: str, theirs: Any) -> None:
    """Raise unless rotary positions are of a kind that we have."""
    rope = theirs.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    if kind not in _RAMPS:
        raise DataError(
            f"{where}: rope_type must be one of {', '.join(_RAMPS)} to be converted, got {kind!r}."
        )
    for name, value in _RAMPS[kind].items():
        if (got := rope.get(name, value)) != value and got is not None:
            raise DataError(f"{where}: {name} must be {value!r} to be converted, got {got!r}.")


def attention_weights(options: Mapping[str, Any]) -> list[Weight]:
    """Weights of `linrnn.mixers.Attention` with these options, by the usual names.

    Norms of queries and keys are left out.
    """
    words = AFFINE if options.get("bias") else ("weight",)
    width, d_rotary = options["d_head"], options["d_rotary"]
    weights = [
        turned(f"{p}_proj.{w}", f"{p}_proj.{w}", width, d_rotary) for p in "qk" for w in words
    ]
    weights += equal(*(f"{p}_proj.{w}" for p in "vo" for w in words))
    if options.get("out_bias") and not options.get("bias"):
        weights += equal("o_proj.bias")
    return weights


def qk_norm_weights(
    options: Mapping[str, Any], names: tuple[str, str] = ("q_norm", "k_norm"), one: bool = False
) -> list[Weight]:
    """Norms of queries and keys, in the order of their channels.

    Args:
        options: of `linrnn.mixers.Attention`.
        names: of both there.
        one: theirs lack a 1.
    """
    width, d_rotary = options["d_head"], options["d_rotary"]
    weights = []
    for ours, theirs in zip(("q_norm", "k_norm"), names, strict=True):
        weight = turned(f"{ours}.weight", f"{theirs}.weight", width, d_rotary)
        weights.append(plus_one(weight) if one else weight)
    return weights


def mamba2_options(theirs: Any, prefix: str = "mamba_") -> dict[str, Any]:
    """Options of `linrnn.mixers.Mamba2` from the usual fields of a configuration.

    Args:
        theirs: the configuration.
        prefix: of the names of the fields.
    """

    def field(name: str) -> Any:
        return getattr(theirs, prefix + name)

    options = {
        "d_state": field("d_state"),
        "d_head": field("d_head"),
        "n_groups": field("n_groups"),
        "d_conv": field("d_conv"),
        "d_inner": field("n_heads") * field("d_head"),
        "conv_bias": bool(field("conv_bias")),
        "bias": bool(field("proj_bias")),
        "norm_eps": theirs.rms_norm_eps,
    }
    return options | step_bounds(theirs)


def step_bounds(theirs: Any) -> dict[str, float]:
    """Bounds of the step sizes of Mamba-2, as far as there are any."""
    low, high = theirs.time_step_limit or (0.0, inf)
    bounds = {"dt_low": low} if low > 0 else {}
    return bounds | ({"dt_high": high} if high < inf else {})


def mamba2_weights(options: Mapping[str, Any]) -> list[Weight]:
    """Weights of `linrnn.mixers.Mamba2` with these options, which have the same names there."""
    parts = ["A_log", "D", "dt_bias", "conv1d.weight", "in_proj.weight", "out_proj.weight"]
    parts += ["conv1d.bias"] if options.get("conv_bias", True) else []
    parts += ["in_proj.bias", "out_proj.bias"] if options.get("bias") else []
    parts += ["norm.weight"] if options.get("rmsnorm", True) else []
    return equal(*parts)


def gated_weights(ours: str, theirs: str) -> list[Weight]:
    """Weights of `linrnn.nn.GatedMLP` without biases, by the usual names."""
    return renamed(
        {f"{ours}.{p}.weight": f"{theirs}.{p}_proj.weight" for p in ("gate", "up", "down")}
    )


def expert_weights(ours: str, theirs: str, gated: bool = True) -> list[Weight]:
    """Weights of the experts of `linrnn.nn.MoE`, which are one tensor there as well."""
    first = "gate_up" if gated else "up"
    return renamed({f"{ours}.{p}": f"{theirs}.{p}_proj" for p in (first, "down")})


def routed_experts(theirs: Any, n_experts: int) -> dict[str, Any]:
    """Options of `linrnn.nn.MoE` with DeepSeek-V3's router, by the usual fields for them."""
    return {
        "n_experts": n_experts,
        "top_k": theirs.num_experts_per_tok,
        "d_inner": theirs.moe_intermediate_size,
        "router": "sigmoid",
        "normalise": theirs.norm_topk_prob,
        "scale": float(theirs.routed_scaling_factor),
        "corrected": True,
        "n_groups": theirs.n_group,
        "top_groups": theirs.topk_group,
    }


def check_usual(where: str, theirs: Any, **expected: Any) -> None:
    """Raise unless the activation is SiLU, nothing is dropped, and ``expected``."""
    usual: dict[str, Any] = {"hidden_act": "silu", "attention_dropout": 0.0, "mlp_bias": False}
    usual |= expected
    require(where, theirs, **{k: v for k, v in usual.items() if hasattr(theirs, k)})
