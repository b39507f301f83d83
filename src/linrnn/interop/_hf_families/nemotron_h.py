"""Nemotron-H and Nemotron 3: layers of one part each, Mamba-2, attention, a network or experts.

A network or experts, and the layer before, are one block of ours.
"""

from typing import Any, NamedTuple

from transformers import NemotronHForCausalLM

from linrnn.errors import DataError
from linrnn.interop._hf_family import Family
from linrnn.interop._hf_layouts import require
from linrnn.interop._hf_parts import (
    attention_options,
    attention_weights,
    check_usual,
    expert_weights,
    layers,
    mamba2_weights,
    routed_experts,
)
from linrnn.interop._hf_weights import Weight, equal, renamed, within

_OUTER = {
    "encoder.weight": "model.embeddings.weight",
    "final_norm.weight": "model.norm_f.weight",
    "head.weight": "lm_head.weight",
}
_MIXERS = {"linear_attention": "mamba2", "full_attention": "attention"}
_PARTS = {"mlp": "relu2", "moe": "moe"}


class _Block(NamedTuple):
    """Which of their layers a block of ours is."""

    mixer: str
    first: int
    part: str = "bare"

    @property
    def second(self) -> int:
        return self.first + 1


def _blocks(theirs: Any) -> list[_Block]:
    blocks: list[_Block] = []
    for i, kind in enumerate(theirs.layers_block_type):
        if kind in _MIXERS:
            blocks.append(_Block(_MIXERS[kind], i))
        else:
            blocks[-1] = blocks[-1]._replace(part=_PARTS[kind])
    return blocks


def _stack(theirs: Any) -> dict[str, Any]:
    blocks = _blocks(theirs)
    parts = [block.part for block in blocks]
    experts = {
        **routed_experts(theirs, theirs.n_routed_experts),
        "activation": "relu2",
        "d_latent": theirs.moe_latent_size,
        "d_shared": theirs.moe_shared_expert_intermediate_size,
    }
    return {
        "n_layers": len(blocks),
        **layers([block.mixer for block in blocks], _options(theirs)),
        "block": "bare",
        "block_pattern": tuple(parts),
        "block_options": {"moe": experts} if "moe" in parts else None,
        "d_ffn": theirs.intermediate_size if "relu2" in parts else None,
        "norm_eps": theirs.layer_norm_epsilon,
    }


def _options(theirs: Any) -> dict[str, Any]:
    mamba2 = {
        "d_state": theirs.ssm_state_size,
        "d_head": theirs.mamba_head_dim,
        "n_groups": theirs.n_groups,
        "d_conv": theirs.conv_kernel,
        "d_inner": theirs.mamba_num_heads * theirs.mamba_head_dim,
        "conv_bias": bool(theirs.use_conv_bias),
        "bias": bool(theirs.use_bias),
        "norm_eps": theirs.layer_norm_epsilon,
        "dt_low": theirs.time_step_min,  # of whole sequences; their single steps have no bound
    }
    return {"mamba2": mamba2, "attention": attention_options(theirs, d_rotary=0, bias=False)}


def _weights(theirs: Any) -> list[Weight]:
    options, weights = _options(theirs), renamed(_OUTER)
    parts = {
        "mamba2": mamba2_weights(options["mamba2"]),
        "attention": attention_weights(options["attention"]),
    }
    for i, block in enumerate(_blocks(theirs)):
        ours, place = f"blocks.{i}.", "model.layers.{}."
        first = [*equal("norm.weight"), *within("mixer.", "mixer.", parts[block.mixer])]
        weights += within(ours, place.format(block.first), first)
        if block.part != "bare":
            weights += within(ours, place.format(block.second), _part(block.part, theirs))
    return weights


def _part(part: str, theirs: Any) -> list[Weight]:
    norm = renamed({f"{part}_norm.weight": "norm.weight"})
    if part == "relu2":
        return norm + renamed(
            {f"relu2.{p}.weight": f"mixer.{p}_proj.weight" for p in ("up", "down")}
        )
    names = {
        f"moe.shared.{p}.weight": f"mixer.shared_experts.{p}_proj.weight" for p in ("up", "down")
    }
    names |= {
        "moe.router.weight": "mixer.gate.weight",
        "moe.correction": "mixer.gate.e_score_correction_bias",
    }
    if theirs.moe_latent_size is not None:
        names["moe.latent_in.weight"] = "mixer.fc1_latent_proj.weight"
        names["moe.latent_out.weight"] = "mixer.fc2_latent_proj.weight"
    return norm + renamed(names) + expert_weights("moe", "mixer.experts", gated=False)


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs, mlp_hidden_act="relu2", mamba_hidden_act="silu")
    if theirs.sliding_window is not None and "full_attention" in theirs.layers_block_type:
        require(where, theirs, sliding_window=None)
    before = "mlp"
    for i, kind in enumerate(theirs.layers_block_type):
        if kind in _PARTS and before in _PARTS:
            raise DataError(
                f"{where}: layer {i}, of kind {kind!r}, must follow one of Mamba-2 or attention, "
                f"got {before!r} before it."
            )
        before = kind


FAMILY = Family(
    NemotronHForCausalLM, _stack, _weights, _check, ("hybrid_override_pattern", "num_hidden_layers")
)
