"""Layers of flash-linear-attention whose memories are sums of products."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from linrnn.interop._fla_layer_parts import (
    AFFINE,
    FEATURES,
    FUSE,
    NO_CONV,
    NORM_EPS,
    NOTHING,
    SILU,
    TURNED,
    Layer,
    conv,
    convs,
    each,
    expansions,
    folded,
    g_norm,
    gate,
    gated_norm,
    joined,
    kv_heads,
    renamed,
    state_sizes,
)
from linrnn.interop._fla_layer_rules import (
    Config,
    Joined,
    Mixer,
    Option,
    Part,
    Rule,
    choice,
    equal_heads,
    exact,
    fixed,
    ignored,
    only,
    same,
)


def _turned_where(option: str) -> Callable[[Mixer], Sequence[Rule]]:
    def rules(mixer: Mixer) -> Sequence[Rule]:
        forms = TURNED if getattr(mixer, option) else {}
        return [
            *joined("heads.proj", "qkvs", "heads", forms),
            folded("out.out_proj", g_norm, lambda m: int(m.d_value)),
            *renamed(out__gate_proj__weight="g_proj.weight"),
        ]

    return rules


def _linear_features(config: Config) -> int:
    keys = config["hidden_size"] * config["expand_k"] / config["num_heads"]
    return exact(keys, "hidden_size * expand_k / num_heads") * (
        2 if config["feature_map"] == "hedgehog" else 1
    )


def _division(config: Config) -> Mapping[str, Any]:
    """Theirs scales by the root of the features, which its norm and its epsilon see."""
    size = _linear_features(config)
    kinds = {("rmsnorm", False): "norm", ("identity", True): "add"}
    how = config["output_norm"], config["do_feature_map_norm"]
    only("output_norm, do_feature_map_norm", None, *kinds).into(
        {"output_norm, do_feature_map_norm": how}
    )
    eps = size * config["norm_eps"] if how[0] == "rmsnorm" else size**0.5 * 1e-10
    return {"division": kinds[how], "eps": eps}


def _of_division(mixer: Mixer) -> Mapping[str, Any]:
    normed = mixer.division == "norm"
    theirs = {"output_norm": "rmsnorm" if normed else "identity", "do_feature_map_norm": not normed}
    return {**theirs, **({"norm_eps": mixer.eps / mixer.d_features} if normed else {})}


def _linear(mixer: Mixer) -> Sequence[Rule]:
    normed = mixer.division == "norm"
    out = (
        folded("out_proj", lambda c: "norm.weight", lambda m: int(m.d_value))
        if normed
        else renamed(out_proj__weight="o_proj.weight")[0]
    )
    names = {"hedgehog": {"proj": "layer"}, "t2r": {"proj": "layer"}}
    layers = names.get(mixer.feature_map, {"proj": "layer1", "factor": "layer2"})
    maps = [
        Joined(f"map_{x}.{ours}.{kind}", [Part(f"feature_map_{x}.{theirs}.{kind}")])
        for x in "qk"
        for ours, theirs in layers.items()
        for kind in ("weight", "bias")
    ]
    return [*joined("heads.proj", "qkv", "heads"), out, *maps]


LAYERS: dict[str, Layer] = {
    "GatedLinearAttention": Layer(
        "gla",
        [
            *(NOTHING, FUSE, expansions(4, 0.5, 1.0), kv_heads(), FEATURES, conv(False)),
            *(gate("use_output_gate", SILU, "gate_fn"), AFFINE, NORM_EPS),
            same("gate_logit_normalizer", 16, "tau"),
            same("gate_low_rank_dim", 16, "gate_rank"),
            *(only("clamp_min", None), fixed(norm="rms", gate_bias=False)),
        ],
        each(
            [
                *joined("heads.proj", "qkv", "heads"),
                *convs("conv1d", "qkv", "heads"),
                folded("out.out_proj", gated_norm, lambda m: int(m.d_value)),
                *renamed(
                    decay__down__weight="gk_proj.0.weight",
                    decay__up__weight="gk_proj.1.weight",
                    decay__up__bias="gk_proj.1.bias",
                    out__gate_proj__weight="g_proj.weight",
                ),
            ]
        ),
    ),
    "MultiScaleRetention": Layer(
        "retnet",
        [
            *(NOTHING, FUSE, expansions(8, 1.0, 2.0), kv_heads(), FEATURES, conv(False)),
            *(gate("use_output_gate", SILU, "gate_fn"), AFFINE, NORM_EPS),
            fixed(turns="rotary", norm="rms"),
        ],
        each(
            [
                *joined("heads.proj", "qkv", "heads", TURNED),
                *convs("conv1d", "qkv", "heads", TURNED),
                folded("out.out_proj", gated_norm, lambda m: int(m.d_value)),
                *renamed(out__gate_proj__weight="g_proj.weight"),
            ]
        ),
    ),
    "GatedSlotAttention": Layer(
        "gsa",
        [
            *(NOTHING, expansions(4, 1.0, 1.0), equal_heads("num_kv_heads"), NO_CONV, AFFINE),
            *(ignored(norm_eps=1e-5), fixed(norm_eps=1e-5)),  # which its forward does not read
            *(same("gate_logit_normalizer", 8, "tau"),),
            *(only("feature_map", "swish"), ignored(use_output_gate=False, use_norm=True)),
            Option(
                {"scale": 1.0, "num_slots": None},
                lambda c: {
                    "slots": c["num_slots"],
                    "scale": (c["hidden_size"] * c["expand_k"] / c["num_heads"]) ** -0.5
                    if c["scale"] is None
                    else c["scale"],
                },
                lambda m: {"scale": m.scale, "num_slots": m.slots},
            ),
        ],
        each(
            [
                *joined("heads.proj", "qkvf", "heads"),
                folded("out.out_proj", g_norm, lambda m: int(m.n_heads * m.d_value)),
            ]
        ),
    ),
    "ABCAttention": Layer(
        "abc",
        [
            *(expansions(4, 0.5, 1.0), NO_CONV, AFFINE, NORM_EPS),
            *(same("num_slots", None, "slots"), same("use_rope", True, "rotary")),
            *(only("use_input_gate", False), only("use_output_gate", True), only("use_norm", True)),
            ignored(layer_idx=None, gate_low_rank_dim=16, gate_logit_normalizer=16),
            Option(
                {"clamp_min": -32, "clamp_max": 32},
                lambda c: (
                    only("clamp_min", None, -c["clamp_max"]).into(c) or {"clip": c["clamp_max"]}
                ),
                lambda m: {"clamp_min": -m.clip, "clamp_max": m.clip},
            ),
        ],
        _turned_where("rotary"),
    ),
    "LightNetAttention": Layer(
        "lightnet",
        [
            *(
                NOTHING,
                state_sizes("d_key", 128),
                NO_CONV,
                AFFINE,
                ignored(norm_eps=1e-5),
                fixed(norm_eps=1e-6),
            ),
            same("gate_low_rank_dim", 128, "gate_rank"),
        ],
        each(
            [
                *joined("heads.proj", "qkv", "heads"),
                folded("out.out_proj", g_norm, lambda m: int(m.d_model)),
                *renamed(
                    out__gate_proj__down__weight="g_proj.0.weight",
                    out__gate_proj__up__weight="g_proj.1.weight",
                ),
            ]
        ),
    ),
    "HGRN2Attention": Layer(
        "hgrn2",
        [
            *(NOTHING, state_sizes("d_head", 128), conv(False), only("elementwise_affine", True)),
            Option(
                {"norm_eps": 1e-5},  # behind a division by the root of d_head
                lambda c: {
                    "norm_eps": c["norm_eps"] * state_sizes("d_head", 128).into(c)["d_head"]
                },
                lambda m: {"norm_eps": m.norm_eps / m.d_head},
            ),
            fixed(q_activation="silu", v_activation="identity", bias=False, norm="rms"),
        ],
        each(
            [
                *joined("heads.proj", "iqf", "heads"),
                *convs("conv1d", "iqf", "heads"),
                *renamed(out_norm__weight="g_norm.weight", out_proj__weight="o_proj.weight"),
            ]
        ),
    ),
    "LinearAttention": Layer(
        "linear_attention",
        [
            *(NOTHING, expansions(8, 1.0, 1.0), equal_heads("num_kv_heads"), AFFINE),
            choice(
                *("feature_map", "elementwise_product", "feature_map"),
                {"elementwise_product": "product"}
                | {x: x for x in ("hedgehog", "t2r", "elu", "relu", "identity")},
            ),
            *(only("tie_feature_map_qk", False), only("norm_q", False), only("norm_k", False)),
            Option(
                {"output_norm": "rmsnorm", "do_feature_map_norm": False, "norm_eps": 1e-5},
                *(_division, _of_division),
            ),
            fixed(bias=False),
        ],
        _linear,
    ),
    "BasedLinearAttention": Layer(
        "based",
        [
            Option(
                {"num_heads": 12, "num_key_value_heads": 12},
                lambda c: (
                    only("num_key_value_heads", None, c["num_heads"]).into(c)
                    or {
                        "n_heads": c["num_heads"],
                        "d_value": exact(
                            c["hidden_size"] / c["num_heads"], "hidden_size / num_heads"
                        ),
                    }
                ),
                lambda m: {"num_heads": m.n_heads, "num_key_value_heads": m.n_heads},
            ),
            same("feature_dim", 16, "d_key"),
            *(only("feature_name", "taylor_exp"), only("causal", True)),
            *(ignored(mode="parallel", eps=1e-12), fixed(eps=1e-6)),
        ],
        each(
            [
                *joined("heads.proj", "qkv", "heads"),
                *renamed(out_proj__weight="o_proj.weight"),
            ]
        ),
    ),
    "ReBasedLinearAttention": Layer(
        "rebased",
        [
            Option(
                {"num_heads": 16, "num_key_value_heads": 16},
                lambda c: (
                    only("num_key_value_heads", None, c["num_heads"]).into(c)
                    or {
                        "n_heads": c["num_heads"],
                        "d_value": exact(
                            c["hidden_size"] / c["num_heads"], "hidden_size / num_heads"
                        ),
                    }
                ),
                lambda m: {"num_heads": m.n_heads, "num_key_value_heads": m.n_heads},
            ),
            *(same("feature_dim", 16, "d_key"), same("eps", 1e-5), only("causal", True)),
            *(only("use_gamma", True), only("use_beta", True), only("normalize", True)),
            *(only("mode", "parallel"), ignored(l_max=2048, layer_idx=None), fixed(norm_eps=1e-5)),
        ],
        each(
            [
                *joined("heads.proj", "qkv", "heads"),
                *renamed(
                    gamma="feature_map.gamma",
                    beta="feature_map.beta",
                    out_proj__weight="o_proj.weight",
                ),
            ]
        ),
    ),
}
