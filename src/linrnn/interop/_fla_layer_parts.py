"""Weights and options that many layers of flash-linear-attention have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from linrnn.interop._fla_layer_rules import (
    TAPS,
    Config,
    Folded,
    Form,
    Joined,
    Mixer,
    Option,
    Part,
    Rule,
    choice,
    exact,
    ignored,
    only,
    same,
    turned,
)


class Layer(NamedTuple):
    """A layer of theirs: the mixer, its options, and the weights of a mixer with these."""

    mixer: str
    options: Sequence[Option]
    weights: Callable[[Mixer], Sequence[Rule]]


def renamed(**theirs: str) -> list[Rule]:
    """Weights under another name; two underscores of ours are a dot."""
    return [Joined(ours.replace("__", "."), [Part(name)]) for ours, name in theirs.items()]


def joined(
    ours: str, letters: str, widths: str, form: Mapping[str, Form] | None = None
) -> list[Rule]:
    """Maps to heads, and their biases: ``q_proj``, ``k_proj``, ... as one map of a `Heads`."""
    forms = form or {}
    return [
        Joined(
            f"{ours}.{kind}",
            [Part(f"{x}_proj.{kind}", forms.get(x)) for x in letters],
            lambda m: m.get_submodule(widths).widths,
        )
        for kind in ("weight", "bias")
    ]


def convs(
    ours: str, letters: str, widths: str, form: Mapping[str, Form] | None = None
) -> list[Rule]:
    """Convolutions of each, as one."""
    forms = form or {}

    def part(letter: str, kind: str) -> Part:
        other = forms.get(letter)
        if kind == "bias":
            return Part(f"{letter}_conv1d.bias", other)
        if other is None:
            return Part(f"{letter}_conv1d.weight", TAPS)
        into, out = other
        both = Form(lambda x, m: into(TAPS.into(x, m), m), lambda x, m: TAPS.out(out(x, m), m))
        return Part(f"{letter}_conv1d.weight", both)

    return [
        Joined(
            f"{ours}.{kind}",
            [part(x, kind) for x in letters],
            lambda m: m.get_submodule(widths).widths,
        )
        for kind in ("weight", "bias")
    ]


def each(weights: Sequence[Rule]) -> Callable[[Mixer], Sequence[Rule]]:
    """Make the same rules whatever the mixer's options."""
    return lambda mixer: weights


# Options that many layers have.

NOTHING = ignored(mode="chunk", layer_idx=None)
NORM_EPS = same("norm_eps", 1e-5)
AFFINE = Option({"elementwise_affine": True}, lambda c: {}, lambda m: {"elementwise_affine": True})
FUSE = ignored(fuse_norm=True)


def conv(default: bool) -> Option:
    """A convolution of conv_size taps, or none."""

    def into(config: Config) -> Mapping[str, Any]:
        if not config["use_short_conv"]:
            return {"d_conv": None}
        return {"d_conv": config["conv_size"], "conv_bias": config["conv_bias"]}

    def out(mixer: Mixer) -> Mapping[str, Any]:
        size = {} if mixer.d_conv is None else {"conv_size": mixer.d_conv}
        return {"use_short_conv": mixer.d_conv is not None, **size, "conv_bias": mixer.conv_bias}

    return Option({"use_short_conv": default, "conv_size": 4, "conv_bias": False}, into, out)


NO_CONV = Option(
    {"use_short_conv": False, "conv_size": 4, "conv_bias": False},
    only("use_short_conv", False).into,
    lambda m: {"use_short_conv": False},
)


def head_sizes(head_dim: int, heads: int, expand_v: float) -> Option:
    """Heads of head_dim keys and expand_v as many values, several of which may share keys."""

    def into(config: Config) -> Mapping[str, Any]:
        keys, size = config["num_heads"], config["head_dim"]
        heads = keys if config["num_v_heads"] is None else config["num_v_heads"]
        values = exact(size * config["expand_v"], "head_dim * expand_v")
        return {"n_heads": heads, "key_heads": keys, "d_key": size, "d_value": values}

    def out(mixer: Mixer) -> Mapping[str, Any]:
        sizes = {"head_dim": mixer.d_key, "expand_v": mixer.d_value / mixer.d_key}
        return {"num_heads": mixer.key_heads, "num_v_heads": mixer.n_heads, **sizes}

    theirs = {"head_dim": head_dim, "num_heads": heads, "num_v_heads": None, "expand_v": expand_v}
    return Option(theirs, into, out)


def expansions(heads: int, expand_k: float, expand_v: float) -> Option:
    """Keys and values of all heads as parts of hidden_size."""

    def into(config: Config) -> Mapping[str, Any]:
        width, heads = config["hidden_size"], config["num_heads"]
        keys = exact(width * config["expand_k"] / heads, "hidden_size * expand_k / num_heads")
        values = exact(width * config["expand_v"] / heads, "hidden_size * expand_v / num_heads")
        return {"n_heads": heads, "d_key": keys, "d_value": values}

    def out(mixer: Mixer) -> Mapping[str, Any]:
        parts = {
            "expand_k": mixer.n_heads * mixer.d_key / mixer.d_model,
            "expand_v": mixer.n_heads * mixer.d_value / mixer.d_model,
        }
        return {"num_heads": mixer.n_heads, **parts}

    return Option({"num_heads": heads, "expand_k": expand_k, "expand_v": expand_v}, into, out)


def state_sizes(ours_key: str, default: int) -> Option:
    """num_heads heads of expand_ratio keys; one of both may follow from hidden_size."""

    def into(config: Config) -> Mapping[str, Any]:
        width, heads, size = (config[x] for x in ("hidden_size", "num_heads", "expand_ratio"))
        size = exact(width / heads, "hidden_size / num_heads") if size is None else size
        heads = width // size if heads is None else heads
        if ours_key == "d_head":
            only("expand_ratio", None, exact(width / heads, "hidden_size / num_heads")).into(
                {"expand_ratio": size}
            )
            return {"d_head": size}
        values = exact(width / heads, "hidden_size / num_heads")
        return {"n_heads": heads, "d_key": size, "d_value": values}

    def out(mixer: Mixer) -> Mapping[str, Any]:
        return {"num_heads": mixer.n_heads, "expand_ratio": getattr(mixer, ours_key)}

    return Option({"num_heads": None, "expand_ratio": default}, into, out)


def kv_heads(option: str = "num_kv_heads") -> Option:
    """Heads of keys and values, as many as of queries if it is None."""
    return Option(
        {option: None},
        lambda c: {"n_kv_heads": c["num_heads"] if c[option] is None else c[option]},
        lambda m: {option: m.n_kv_heads},
    )


def gate(switch: str, values: Mapping[str, str], words: str | None = None) -> Option:
    """A gate at the output, or none; ``words`` of theirs names its activation."""
    default = next(iter(values))

    def into(config: Config) -> Mapping[str, Any]:
        if not config[switch]:
            return {"gate": "none"}
        if words is None:
            return {"gate": values[default]}
        return choice(words, default, "gate", values).into(config)

    def out(mixer: Mixer) -> Mapping[str, Any]:
        if mixer.gate == "none":
            return {switch: False}
        names = {} if words is None else choice(words, default, "gate", values).out(mixer)
        return {switch: True, **names}

    return Option({switch: True, **({} if words is None else {words: default})}, into, out)


BETA = choice("allow_neg_eigval", False, "beta_max", {False: 1.0, True: 2.0})
SILU = {"swish": "silu", "sigmoid": "sigmoid"}
FEATURES = choice(
    "feature_map", None, "feature_map", {None: "identity", "relu": "relu", "silu": "silu"}
)
HEADS = Option(  # of attention, of whose heads hidden_size is made
    {"num_heads": 32},
    lambda c: {
        "n_heads": c["num_heads"],
        "d_head": exact(c["hidden_size"] / c["num_heads"], "hidden_size / num_heads"),
    },
    lambda m: {"num_heads": m.n_heads},
)
BOUND = Option(
    {"safe_gate": False, "lower_bound": None},
    lambda c: {"lower_bound": c["lower_bound"]},
    lambda m: {"safe_gate": m.lower_bound is not None, "lower_bound": m.lower_bound},
)
SQUASH = (
    same("squash_x", 1.5, "squash"),
    same("squash_eps", 1e-6),
    ignored(log_atk_scale_init=-0.2),
)


def gated_norm(config: Config) -> str:
    """One kernel norms and gates with swish, and then has another name."""
    if not config["use_output_gate"]:
        return "g_norm.weight"
    fused = config["gate_fn"] == "swish" and config["fuse_norm"]
    return "g_norm_swish_gate.weight" if fused else "g_norm.weight"


def folded(
    ours: str, norm: Callable[[Config], str], size: Callable[[Mixer], int], theirs: str = "o_proj"
) -> Rule:
    """A last map with the weights of the norm before it."""
    return Folded(f"{ours}.weight", f"{theirs}.weight", norm, size)


def g_norm(config: Config) -> str:
    """Name the norm of most layers."""
    return "g_norm.weight"


KEYS = turned(lambda m: (m.d_key, m.d_key))
HEAD = turned(lambda m: (m.d_head, m.d_head))
TURNED = {"q": KEYS, "k": KEYS}
