"""Layers of flash-linear-attention whose memories learn by the delta rule."""

from collections.abc import Callable, Sequence

from linrnn.interop._fla_layer_parts import (
    BETA,
    BOUND,
    NORM_EPS,
    NOTHING,
    SILU,
    SQUASH,
    Layer,
    conv,
    convs,
    each,
    expansions,
    gate,
    head_sizes,
    joined,
    renamed,
)
from linrnn.interop._fla_layer_rules import (
    EACH,
    TAPS,
    Folded,
    Joined,
    Mixer,
    Option,
    Part,
    Rule,
    choice,
    exact,
    fixed,
    ignored,
    only,
    same,
)

# Weights of the delta rule's layers.


def _delta(*more: Rule) -> Callable[[Mixer], Sequence[Rule]]:
    return each(
        [
            *joined("qkv.heads.proj", "qkv", "qkv.heads"),
            *convs("qkv.conv1d", "qkv", "qkv.heads"),
            Folded(
                "out.out_proj.weight",
                "o_proj.weight",
                lambda c: "o_norm.weight",
                lambda m: int(m.d_value),
            ),
            *renamed(out__gate_proj__weight="g_proj.weight"),
            *more,
        ]
    )


BETAS = renamed(beta_proj__weight="b_proj.weight")
DECAY = renamed(decay__A_log="A_log", decay__dt_bias="dt_bias")
RATES = [*DECAY, *BETAS, *renamed(decay__proj__weight="a_proj.weight")]
LOW_RANK = renamed(
    decay__proj__down__weight="f_proj.0.weight",
    decay__proj__up__weight="f_proj.1.weight",
    out__gate_proj__down__weight="g_proj.0.weight",
    out__gate_proj__up__weight="g_proj.1.weight",
    out__gate_proj__up__bias="g_proj.1.bias",
)
PRECONDITIONER = renamed(
    preconditioner__decay__A_log="A_log_atk",
    preconditioner__decay__dt_bias="dt_bias_atk",
    preconditioner__rate__weight="b_atk_proj.weight",
    preconditioner__m="log_atk_scale",
)
SHARED = [  # by heads of the same keys
    Joined(ours, [Part(theirs, EACH)])
    for ours, theirs in {
        "decay.A_log": "A_log",
        "inertia.A_log": "Mu_log",
        "phi": "log_factor",
    }.items()
]
MOMENTUM = [
    *SHARED,
    *BETAS,
    *renamed(
        decay__dt_bias="dt_bias",
        decay__proj__weight="a_proj.weight",
        inertia__dt_bias="mu_bias",
        inertia__proj__weight="m_proj.weight",
        eta_proj__weight="e_proj.weight",
        D="D_log",
    ),
]
GATES = Joined(
    "gates.proj.weight",
    [Part("b_proj.weight"), Part("w_proj.weight")],
    lambda m: m.gates.widths,
)


def _mom(mixer: Mixer) -> Sequence[Rule]:
    """Every memory has its own maps, or all use those of the memory that all steps share."""
    each = range(mixer.memories) if mixer.own_maps else ()

    def names(letter: str) -> list[str]:
        maps = [f"{letter}_proj.{i}.weight" for i in each]
        last = mixer.shared or not mixer.own_maps
        return [*maps, *([f"shared_{letter}.weight"] if last else [])]

    every = ["q_proj.weight", *names("k"), *names("v"), *names("b")]
    K, V, H = mixer.n_heads * mixer.d_key, mixer.n_heads * mixer.d_value, mixer.n_heads
    widths = [K, *[K] * len(names("k")), *[V] * len(names("k")), *[H] * len(names("k"))]
    parts = {"q": K, "k": K, "v": V}

    def conv(kind: str) -> Rule:
        form = TAPS if kind == "weight" else None
        theirs = [Part(f"{x}_conv1d.{kind}", form) for x in parts]
        return Joined(f"conv1d.{kind}", theirs, lambda m: list(parts.values()))

    return [
        Joined("heads.proj.weight", [Part(x) for x in every], lambda m: widths),
        Joined("decay.proj.weight", [Part(x) for x in names("a")]),
        conv("weight"),
        conv("bias"),
        *DECAY,
        Folded(
            "out.out_proj.weight",
            "o_proj.weight",
            lambda c: "o_norm.weight",
            lambda m: int(m.d_value),
        ),
        *renamed(router="gate.weight", out__gate_proj__weight="g_proj.weight"),
    ]


LAYERS: dict[str, Layer] = {
    "DeltaNet": Layer(
        "delta_net",
        [
            *(NOTHING, expansions(4, 1.0, 1.0), NORM_EPS, conv(True), BETA),
            choice("use_beta", True, "beta", {True: "learned", False: "largest"}),
            same("use_gate", False, "gate"),
            same("qk_activation", "silu"),
            same("qk_norm", "l2"),
            only("d_model", None),
        ],
        _delta(*BETAS),
    ),
    "GatedDeltaNet": Layer(
        "gated_delta_net",
        [
            *(NOTHING, head_sizes(256, 6, 2), NORM_EPS, conv(True), BETA),
            gate("use_gate", SILU, "output_gate_activation"),
        ],
        _delta(*RATES),
    ),
    "GatedDeltaProduct": Layer(
        "gated_delta_product",
        [
            *(NOTHING, head_sizes(256, 6, 2), NORM_EPS, conv(True)),
            choice("allow_neg_eigval", True, "beta_max", {False: 1.0, True: 2.0}),
            gate("use_output_gate", {"swish": "silu"}),
            same("use_forget_gate", True, "forget"),
            same("num_householder", 2, "writes"),
        ],
        _delta(*RATES),
    ),
    "GatedDeltaNet2": Layer(
        "gdn2",
        [
            *(NOTHING, head_sizes(128, 16, 1.0), NORM_EPS, conv(True)),
            choice("allow_neg_eigval", False, "erase_max", {False: 1.0, True: 2.0}),
        ],
        _delta(GATES, *DECAY, *LOW_RANK),
    ),
    "KimiDeltaAttention": Layer(
        "kda",
        [
            *(NOTHING, head_sizes(128, 16, 1), NORM_EPS, conv(True), BETA, BOUND),
            fixed(gate_bias=True),
        ],
        _delta(*DECAY, *BETAS, *LOW_RANK),
    ),
    "Comba": Layer(
        "comba",
        [
            *(NOTHING, head_sizes(256, 6, 2), NORM_EPS, conv(True)),
            gate("use_output_gate", {"sigmoid": "sigmoid"}),
            same("use_inner_decay", True, "inner_decay"),
            Option(
                {"use_output_correction": True, "correction_factor": 1.0},
                lambda c: {
                    "correction": c["correction_factor"] if c["use_output_correction"] else None
                },
                lambda m: {
                    "use_output_correction": m.correction is not None,
                    **({} if m.correction is None else {"correction_factor": m.correction}),
                },
            ),
        ],
        _delta(*RATES, *renamed(c="decay", D="D")),
    ),
    "MomAttention": Layer(
        "mom",
        [
            *(ignored(mode="chunk", layer_idx=None, capacity=1.0), NORM_EPS),
            Option(
                {"head_dim": 256, "num_heads": 4, "expand_v": 2},
                lambda c: {
                    "n_heads": c["num_heads"],
                    "d_key": c["head_dim"],
                    "d_value": exact(c["head_dim"] * c["expand_v"], "head_dim * expand_v"),
                },
                lambda m: {
                    "num_heads": m.n_heads,
                    "head_dim": m.d_key,
                    "expand_v": m.d_value / m.d_key,
                },
            ),
            *(
                only("use_short_conv", True),
                same("conv_size", 4, "d_conv"),
                same("conv_bias", False),
            ),
            gate("use_output_gate", {"swish": "silu"}),
            *(same("num_memories", 8, "memories"), same("topk", 2, "top")),
            same("shared_mem", False, "shared"),
            choice("single_kv_proj", False, "own_maps", {False: True, True: False}),
        ],
        _mom,
    ),
    "MomentumDeltaNet": Layer(
        "momentum_delta_net",
        [
            *(NOTHING, head_sizes(256, 4, 2.0), NORM_EPS, conv(True), BETA),
            gate("use_gate", {"swish": "silu"}),
            choice("use_p_times_alpha", True, "read", {True: "decayed", False: "whole"}),
            same("use_output_correction", True, "correction"),
            same("min_log_mu", -2.0, "log_mu_min"),
            *(only("use_beta", True), only("qk_activation", "silu"), only("qk_norm", "l2")),
            *(only("d_model", None), only("tau_factor", 1), ignored(expand_k=1.0)),
        ],
        _delta(*MOMENTUM),
    ),
    "PrecondGatedDeltaNet": Layer(
        "preconditioned_gated_delta",
        [
            *(NOTHING, head_sizes(256, 6, 2), NORM_EPS, conv(True), BETA, *SQUASH),
            gate("use_gate", {"swish": "silu"}),
        ],
        _delta(
            *RATES,
            *PRECONDITIONER,
            *renamed(preconditioner__decay__proj__weight="a_atk_proj.weight"),
        ),
    ),
    "PrecondKDA": Layer(
        "preconditioned_kda",
        [*(NOTHING, head_sizes(128, 16, 1), NORM_EPS, conv(True), BETA, BOUND, *SQUASH)],
        _delta(
            *(*DECAY, *BETAS, *LOW_RANK, *PRECONDITIONER),
            *renamed(preconditioner__decay__proj__weight="a_proj.weight"),
        ),
    ),
}
