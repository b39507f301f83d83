"""Layers of flash-linear-attention that are state spaces, RWKV, HGRN and Rodimus."""

from collections.abc import Mapping, Sequence
from typing import Any

from linrnn.interop._fla_layer_parts import (
    FUSE,
    NO_CONV,
    NORM_EPS,
    NOTHING,
    Layer,
    each,
    folded,
    renamed,
)
from linrnn.interop._fla_layer_rules import (
    MIXES,
    MIXES_UP,
    OF_TWICE,
    ROW,
    TAPS,
    Config,
    Joined,
    Mixer,
    Option,
    Part,
    Rule,
    exact,
    fixed,
    ignored,
    only,
    same,
)


def _rodimus_rank(config: Config) -> Mapping[str, Any]:
    rank = config["input_gate_low_rank"]
    auto = max(config["hidden_size"] // 64, 16)
    width = -(-2 * config["hidden_size"] // 8) * 8
    return {"gate_rank": auto if rank == "auto" else rank, "d_inner": width}


def _inner(config: Config) -> Mapping[str, Any]:
    expand = exact(config["intermediate_size"] / config["hidden_size"], "intermediate_size / width")
    rank = -(-config["hidden_size"] // 16) if config["dt_rank"] == "auto" else config["dt_rank"]
    return {"expand": expand, "dt_rank": rank}


def _limits(config: Config) -> Mapping[str, Any]:
    low, high = config["dt_limit"]
    return {"dt_low": low, "dt_high": None if high == float("inf") else high}


def _groups(config: Config) -> Mapping[str, Any]:
    """Theirs norms each group, and ours all channels."""
    if config["rmsnorm"]:
        only("n_groups", 1).into(config)
    return {"n_groups": config["n_groups"], "rmsnorm": config["rmsnorm"]}


def _mamba2_sizes(config: Config) -> Mapping[str, Any]:
    heads = exact(
        config["expand"] * config["hidden_size"] / config["head_dim"], "heads of head_dim"
    )
    only("num_heads", None, None, heads).into(config)
    return {"expand": config["expand"], "d_head": config["head_dim"]}


STEPS = ignored(dt_min=1e-3, dt_max=0.1, dt_init_floor=1e-4)


def _parameters(mixer: Mixer) -> Sequence[Rule]:
    """The same names, but for the axis of groups of a convolution, and of inputs of Mamba-3."""
    shaped = {"conv1d.weight": TAPS, "B_bias": TAPS, "C_bias": TAPS}
    return [Joined(x, [Part(x, shaped.get(x))]) for x, _ in mixer.named_parameters()]


def _rwkv6_sizes(config: Config) -> Mapping[str, Any]:
    only("expand_k", None, config["expand_v"]).into(config)
    size = config["hidden_size"] * config["expand_k"] / config["num_heads"]
    heads = exact(size, "hidden_size * expand_k / num_heads")
    return {"n_heads": config["num_heads"], "d_head": heads}


def _of_rwkv6_sizes(mixer: Mixer) -> Mapping[str, Any]:
    part = mixer.n_heads * mixer.d_head / mixer.d_model
    return {"num_heads": mixer.n_heads, "expand_k": part, "expand_v": part}


def _rwkv7_sizes(config: Config) -> Mapping[str, Any]:
    width, size = config["hidden_size"], config["head_dim"]
    size = exact(width / config["num_heads"], "hidden_size / num_heads") if size is None else size
    only("value_dim", None, None, width).into(config)

    def rank(factor: float) -> int:
        return int(max(32, round(factor * width**0.5 / 32) * 32))

    ranks = {
        "decay_rank": ("decay_low_rank_dim", 2.5 * size / 64),
        "rate_rank": ("a_low_rank_dim", 2.5 * size / 64),
        "gate_rank": ("gate_low_rank_dim", 5.0),
        "value_rank": ("v_low_rank_dim", 1.7 * size / 64),
    }
    chosen = {x: config[y] if config[y] is not None else rank(z) for x, (y, z) in ranks.items()}
    later = config["layer_idx"] != 0
    place = {"layer": config["layer_idx"] or 0, "n_layers": config["num_hidden_layers"] or 1}
    place["n_layers"] = max(place["n_layers"], place["layer"] + 1)
    receives = ("v_first",) if later else ()
    heads = exact(width / size, "hidden_size / head_dim")
    eps = size * config["norm_eps"]
    return {
        **{"n_heads": heads, "d_head": size, "norm_eps": eps, "receives": receives},
        **chosen,
        **place,
    }


def _of_rwkv7_sizes(mixer: Mixer) -> Mapping[str, Any]:
    first = mixer.residual is None
    return {
        "head_dim": mixer.d_head,
        "num_heads": mixer.n_heads,
        "value_dim": mixer.d_model,
        "norm_eps": mixer.norm_eps / mixer.d_head,
        "decay_low_rank_dim": mixer.decay_rank,
        "a_low_rank_dim": mixer.rate_rank,
        "gate_low_rank_dim": mixer.gate_rank,
        "v_low_rank_dim": mixer.value_rank,
        "layer_idx": 0 if first else max(mixer.layer, 1),
        "num_hidden_layers": max(mixer.n_layers, mixer.layer + 1, 2),
    }


RWKV7_RANKS = ("decay", "gate", "a", "v")


LAYERS: dict[str, Layer] = {
    "HGRNAttention": Layer(
        "hgrn",
        [
            *(NOTHING, NO_CONV, only("elementwise_affine", True)),
            Option(
                {"expand_ratio": 1},
                lambda c: {"d_state": c["hidden_size"] * (c["expand_ratio"] or 1)},
                lambda m: {"expand_ratio": m.d_state // m.d_model},
            ),
            same("norm_eps", 1e-5, times=0.5),
            fixed(gate="silu", norm="rms"),
        ],
        # a state here is complex: it does not turn, and its imaginary part is zero
        each(
            [
                Joined("theta", [Part(None)]),
                Joined(
                    "in_proj.weight", [Part("i_proj.weight"), Part(None), Part("f_proj.weight")]
                ),
                Joined("in_proj.bias", [Part(None)]),
                Joined("gate_proj.weight", [Part("g_proj.weight"), Part(None)]),
                Joined("gate_proj.bias", [Part(None)]),
                Joined("out_norm.weight", [Part("g_norm.weight", OF_TWICE), Part(None)]),
                Joined("out_proj.weight", [Part("o_proj.weight"), Part(None)], axis=1),
                Joined("out_proj.bias", [Part(None)]),
            ]
        ),
    ),
    "RodimusAttention": Layer(
        "rodimus",
        [
            Option(
                {"input_gate_low_rank": "auto"},
                *(_rodimus_rank, lambda m: {"input_gate_low_rank": m.gate_rank}),
            ),
            *(same("expand_ratio", 64, "d_state"), same("conv_size", 4, "d_conv"), NORM_EPS),
            *(
                only("use_short_conv", True),
                only("conv_bias", True),
                only("k_norm_eps", None, None, 1e-12),
            ),
            ignored(block_type="rodimus", mode="chunk", residual_in_fp32=True, layer_idx=None),
        ],
        each(
            [
                Joined("in_proj.weight", [Part("up_proj.weight"), Part("gate_proj.weight")]),
                Joined("conv1d.weight", [Part("short_conv.weight", TAPS)]),
                Joined("qk_proj.weight", [Part("q_proj.weight"), Part("k_proj.weight")]),
                *(
                    Joined(f"gates.{x}", [Part(f"g_gate_proj.{x}"), Part(f"tau_gate_proj.{x}")])
                    for x in ("weight", "bias")
                ),
                *renamed(
                    conv1d__bias="short_conv.bias",
                    value_gate__down__weight="i_gate_proj.0.weight",
                    value_gate__up__weight="i_gate_proj.1.weight",
                    value_gate__up__bias="i_gate_proj.1.bias",
                    rho="residual_weight",
                ),
                folded(
                    *("out_proj", lambda c: "activation_norm.weight"),
                    *(lambda m: int(m.d_inner), "down_proj"),
                ),
            ]
        ),
    ),
    "Mamba": Layer(
        "mamba",
        [
            *(same("state_size", 16, "d_state"), same("conv_kernel", 4, "d_conv"), STEPS),
            *(same("use_conv_bias", True, "conv_bias"), same("use_bias", False, "bias")),
            Option(
                {"intermediate_size": 2048, "dt_rank": "auto"},
                *(_inner, lambda m: {"intermediate_size": m.d_inner, "dt_rank": m.dt_rank}),
            ),
            only("hidden_act", "silu"),
            ignored(layer_idx=None, backend="cuda", dt_init="random", dt_scale=1.0),
        ],
        _parameters,
    ),
    "Mamba2": Layer(
        "mamba2",
        [
            *(same("state_size", 128, "d_state"), STEPS, NORM_EPS),
            *(same("conv_kernel", 4, "d_conv"), same("use_conv_bias", True, "conv_bias")),
            *(same("use_bias", False, "bias"), same("D_has_hdim", False)),
            Option(
                {"n_groups": 1, "rmsnorm": True},
                _groups,
                lambda m: {"n_groups": m.n_groups, "rmsnorm": m.rmsnorm},
            ),
            *(same("norm_before_gate", False), only("hidden_act", "silu")),
            Option(
                {"num_heads": None, "head_dim": 64, "expand": 2},
                _mamba2_sizes,
                lambda m: {"num_heads": m.n_heads, "head_dim": m.d_head, "expand": m.expand},
            ),
            Option(
                {"dt_limit": (0.0, float("inf"))},
                _limits,
                lambda m: {
                    "dt_limit": (m.dt_low, float("inf") if m.dt_high is None else m.dt_high)
                },
            ),
            ignored(A_init_range=(1, 16), conv_init=None, chunk_size=256, layer_idx=None),
            ignored(backend="cuda"),
        ],
        _parameters,
    ),
    "Mamba3": Layer(
        "mamba3",
        [
            *(
                same("state_size", 128, "d_state"),
                same("expand", 2),
                same("n_groups", 1),
                STEPS,
                NORM_EPS,
                same("head_dim", 64, "d_head"),
            ),
            *(same("rope_fraction", 0.5, "turned"), same("A_floor", 1e-4, "decay_floor")),
            *(same("is_outproj_norm", False, "out_norm"), only("is_mimo", False)),
            *(only("use_bias", False), ignored(mimo_rank=4, chunk_size=64, layer_idx=None)),
            fixed(decay="softplus"),
        ],
        _parameters,
    ),
    "RWKV6Attention": Layer(
        "rwkv6",
        [
            *(NOTHING, FUSE, only("gate_fn", "swish"), only("elementwise_affine", True), NORM_EPS),
            Option(
                {"num_heads": 4, "expand_k": 0.5, "expand_v": 1.0},
                *(_rwkv6_sizes, _of_rwkv6_sizes),
            ),
            same("proj_low_rank_dim", 32, "mix_rank"),
            same("gate_low_rank_dim", 64, "decay_rank"),
        ],
        each(
            [
                Joined("mu", [Part("x_bias", MIXES)]),
                Joined("mix_down.weight", [Part("x_proj.0.linear.weight", MIXES)]),
                Joined("mix_up", [Part("x_proj.2.weight", MIXES_UP)]),
                *renamed(
                    mu_x="x_proj.0.mu",
                    time_first="bonus",
                    time_decay="w_proj.linear.lora.2.bias",
                    decay__down__weight="w_proj.linear.lora.0.weight",
                    decay__up__weight="w_proj.linear.lora.2.weight",
                    receptance__weight="r_proj.linear.weight",
                    key__weight="k_proj.linear.weight",
                    value__weight="v_proj.linear.weight",
                    gate__weight="g_proj.linear.weight",
                    output__weight="o_proj.weight",
                    norm_weight="g_norm.weight",
                    norm_bias="g_norm.bias",
                ),
            ]
        ),
    ),
    "RWKV7Attention": Layer(
        "rwkv7",
        [
            *(ignored(mode="chunk", fuse_norm=False), only("elementwise_affine", True)),
            Option(
                {
                    **{"head_dim": 64, "num_heads": None, "value_dim": None, "norm_eps": 1e-5},
                    **{f"{x}_low_rank_dim": None for x in RWKV7_RANKS},
                    **{"layer_idx": None, "num_hidden_layers": None},
                },
                *(_rwkv7_sizes, _of_rwkv7_sizes),
            ),
        ],
        each(
            [
                Joined("mu", [Part(f"x_{x}", ROW) for x in "rwkvag"]),
                *(
                    Joined(f"{ours}.{end}", [Part(f"{theirs}_lora.lora.{i}.{kind}")])
                    for ours, theirs in (
                        *(("decay", "w"), ("rate", "a"), ("residual", "v"), ("gate", "g")),
                    )
                    for end, i, kind in (
                        ("down.weight", 0, "weight"),
                        ("up.weight", 2, "weight"),
                        ("up.bias", 2, "bias"),
                    )
                ),
                *renamed(
                    k_k="k_k",
                    k_a="k_a",
                    r_k="r_k",
                    receptance__weight="r_proj.weight",
                    key__weight="k_proj.weight",
                    value__weight="v_proj.weight",
                    output__weight="o_proj.weight",
                    norm_weight="g_norm.weight",
                    norm_bias="g_norm.bias",
                ),
            ]
        ),
    ),
}
