"""Layers of flash-linear-attention that attend to all steps before."""

from collections.abc import Mapping, Sequence
from typing import Any

from linrnn.interop._fla_layer_parts import HEAD, HEADS, Layer, each, joined, kv_heads, renamed
from linrnn.interop._fla_layer_rules import (
    ALL_HEADS,
    TAPS,
    Config,
    Joined,
    Mixer,
    Option,
    Part,
    Rule,
    choice,
    equal_heads,
    fixed,
    ignored,
    only,
    same,
    turned,
)


def _attention(mixer: Mixer) -> Sequence[Rule]:
    maps = [
        Joined(f"{x}_{part}.{kind}", [Part(f"{x}_{part}.{kind}", HEAD if x in "qk" else None)])
        for x, part in (("q", "proj"), ("k", "proj"), ("v", "proj"), ("q", "norm"), ("k", "norm"))
        for kind in ("weight", "bias")
    ]
    none = Joined("o_proj.bias", [Part(None)])  # theirs has biases behind q, k and v alone
    return [*maps, none, *renamed(o_proj__weight="o_proj.weight")]


def _latent_sizes(config: Config) -> Mapping[str, Any]:
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    only("qk_head_dim", None, None, nope + rope).into(config)
    sizes = {"d_head": nope, "d_rotary": rope, "d_value": config["v_head_dim"]}
    ranks = {"rank": config["kv_lora_rank"], "q_rank": config["q_lora_rank"]}
    return {"n_heads": config["num_heads"], **sizes, **ranks}


def _of_latent_sizes(mixer: Mixer) -> Mapping[str, Any]:
    return {
        "num_heads": mixer.n_heads,
        "q_lora_rank": mixer.q_rank,
        "kv_lora_rank": mixer.rank,
        "qk_nope_head_dim": mixer.d_head,
        "qk_rope_head_dim": mixer.d_rotary,
        "qk_head_dim": mixer.d_head + mixer.d_rotary,
        "v_head_dim": mixer.d_value,
    }


QUERIES = turned(lambda m: (m.d_head + m.d_rotary, m.d_rotary))
ROTATED = turned(lambda m: (m.d_rotary, m.d_rotary))


def _latent(mixer: Mixer) -> Sequence[Rule]:
    last = "q_proj" if mixer.q_rank is None else "q_proj.2"
    return [
        Joined("q_proj.weight", [Part(f"{last}.weight", QUERIES)]),
        *renamed(q_down__weight="q_proj.0.weight", q_norm__weight="q_proj.1.weight"),
        Joined(
            "kv_down.weight",
            [Part("kv_proj.0.weight"), Part("k_rope.weight", ROTATED)],
            lambda m: [m.rank, m.d_rotary],
        ),
        *renamed(
            kv_norm__weight="kv_proj.1.weight",
            kv_up__weight="kv_proj.2.weight",
            o_proj__weight="o_proj.weight",
        ),
    ]


PLACES = (same("rope_theta", 10_000.0, "base"), ignored(max_position_embeddings=None))
WINDOW = same("window_size", None, "window")
NOTHING_MORE = ignored(layer_idx=None)


LAYERS: dict[str, Layer] = {
    "ForgettingAttention": Layer(
        "forgetting_attention",
        [
            *(HEADS, kv_heads(), NOTHING_MORE, same("qk_norm", False), only("qkv_bias", False)),
            # theirs has a window in cached steps, and none in a sequence
            *(only("window_size", None), fixed(norm_eps=1e-5)),
            choice("use_output_gate", False, "gate", {False: "none", True: "sigmoid"}),
        ],
        each(
            [
                *joined("heads.proj", "qkv", "heads"),
                *renamed(
                    f_proj__weight="f_proj.weight",
                    f_proj__bias="f_proj.bias",
                    q_norm__weight="q_norm.weight",
                    k_norm__weight="k_norm.weight",
                    out__gate_proj__weight="g_proj.weight",
                    out__out_proj__weight="o_proj.weight",
                ),
            ]
        ),
    ),
    "PaTHAttention": Layer(
        "path_attention",
        [
            *(
                HEADS,
                equal_heads("num_kv_heads"),
                NOTHING_MORE,
                same("use_qk_norm", False, "qk_norm"),
            ),
            *(only("use_low_rank_w", True), only("use_w_shortconv", True)),
            *(same("conv_size", 3, "d_conv"), only("conv_bias", False)),
            Option(
                {"use_forget_gate": False},
                lambda c: {"forget": c["use_forget_gate"], "scale_gates": c["use_forget_gate"]},
                lambda m: {"use_forget_gate": m.forget},
            ),
        ],
        each(
            [
                *joined("heads.proj", "qkv", "heads"),
                Joined("conv1d.weight", [Part("w_conv1d.weight", TAPS)]),
                *(
                    Joined(f"{x}_norm.weight", [Part(f"maybe_{x}_norm.weight", ALL_HEADS)])
                    for x in "qk"
                ),
                *renamed(
                    w_proj__down__weight="w_proj.0.weight",
                    w_proj__up__weight="w_proj.1.weight",
                    beta_proj__weight="bt_proj.weight",
                    beta_proj__bias="bt_proj.bias",
                    f_proj__weight="g_proj.weight",
                    f_proj__bias="g_proj.bias",
                    o_proj__weight="o_proj.weight",
                ),
            ]
        ),
    ),
    "StickBreakingAttention": Layer(
        "stick_breaking",
        [
            *(HEADS, kv_heads(), NOTHING_MORE, same("attend_current", False, "current")),
            *(only("qkv_bias", False), only("qk_norm", False), ignored(norm_eps=1e-6)),
        ],
        each([*joined("heads.proj", "qkv", "heads"), *renamed(o_proj__weight="o_proj.weight")]),
    ),
    "Attention": Layer(
        "attention",
        [
            *(HEADS, kv_heads(), WINDOW, NOTHING_MORE, *PLACES, same("qkv_bias", False, "bias")),
            *(
                choice("qk_norm", False, "qk_norm", {False: "none", True: "head"}),
                fixed(norm_eps=1e-5),
            ),
        ],
        _attention,
    ),
    "MultiheadLatentAttention": Layer(
        "latent_attention",
        [
            Option(
                {
                    **{"num_heads": 16, "q_lora_rank": 1536, "qk_rope_head_dim": 64},
                    **{"kv_lora_rank": 512, "v_head_dim": 128, "qk_nope_head_dim": 128},
                    "qk_head_dim": 192,
                },
                *(_latent_sizes, _of_latent_sizes),
            ),
            *(WINDOW, NOTHING_MORE, *PLACES, only("rope_scaling", None), fixed(norm_eps=1e-5)),
        ],
        _latent,
    ),
}
