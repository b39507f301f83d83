"""RWKV-4 to 7 by their author's names, against the package rwkv on the same checkpoint."""

import json

import pytest
import torch

from rwkv_package import load

transformers = pytest.importorskip("transformers")

from safetensors.torch import save_file  # noqa: E402
from test_hf_layouts import OTHER, check_equal, shaken  # noqa: E402

from linrnn.errors import DataError, DTypeError, LinrnnError  # noqa: E402
from linrnn.interop.hf import (  # noqa: E402
    LinrnnConfig,
    LinrnnForCausalLM,
    from_rwkv,
    to_rwkv_weights,
)

V, D, H, N, F, LAYERS = 41, 12, 2, 6, 20, 3
ROW, MAP = (1, 1, D), (D, D)
SHAPES = {
    4: {
        **{f"att.time_mix_{i}": ROW for i in "kvr"},
        **{"att.time_decay": (D,), "att.time_first": (D,)},
        **{f"ffn.time_mix_{i}": ROW for i in "kr"},
    },
    5: {
        **{f"att.time_mix_{i}": ROW for i in "kvrg"},
        **{"att.time_decay": (H, N), "att.time_faaaa": (H, N), "att.gate.weight": MAP},
        **{"att.ln_x.weight": (D,), "att.ln_x.bias": (D,)},
        **{f"ffn.time_mix_{i}": ROW for i in "kr"},
    },
    6: {
        **{f"att.time_maa_{i}": ROW for i in "xwkvrg"},
        **{"att.time_maa_w1": (D, 5 * 3), "att.time_maa_w2": (5, 3, D)},
        **{"att.time_decay": ROW, "att.time_decay_w1": (D, 4), "att.time_decay_w2": (4, D)},
        **{"att.time_faaaa": (H, N), "att.gate.weight": MAP},
        **{"att.ln_x.weight": (D,), "att.ln_x.bias": (D,)},
        **{f"ffn.time_maa_{i}": ROW for i in "kr"},
    },
    7: {
        **{f"att.x_{i}": ROW for i in "rwkvag"},
        **{f"att.{i}0": ROW for i in "wa"},
        **{
            name: shape
            for i, r in zip("wag", (3, 4, 5), strict=True)
            for name, shape in (
                (f"att.{i}1", (D, r)),
                (f"att.{i}2", (r, D)),
            )
        },
        **{"att.k_k": ROW, "att.k_a": ROW, "att.r_k": (H, N)},
        **{"att.ln_x.weight": (D,), "att.ln_x.bias": (D,), "ffn.x_k": ROW},
    },
}
AFTER_FIRST = {7: {"att.v0": ROW, "att.v1": (D, 2), "att.v2": (2, D)}}
VERSION = pytest.mark.parametrize("version", SHAPES)


def checkpoint(version):
    """Random tensors by the names and shapes that are published."""
    norm = {"weight": (D,), "bias": (D,)}
    block = {
        **{f"{ln}.{p}": shape for ln in ("ln1", "ln2") for p, shape in norm.items()},
        **{f"att.{p}.weight": MAP for p in ("key", "value", "receptance", "output")},
        **{"ffn.key.weight": (F, D), "ffn.receptance.weight": MAP, "ffn.value.weight": (D, F)},
        **SHAPES[version],
    }
    if version == 7:
        del block["ffn.receptance.weight"]
    shapes = {"emb.weight": (V, D), "head.weight": (V, D)}
    shapes |= {f"{ln}.{p}": s for ln in ("blocks.0.ln0", "ln_out") for p, s in norm.items()}
    shapes |= {f"blocks.{i}.{name}": s for i in range(LAYERS) for name, s in block.items()}
    later = AFTER_FIRST.get(version, {}).items()
    shapes |= {f"blocks.{i}.{name}": s for i in range(1, LAYERS) for name, s in later}
    return {name: value(name, shape) for name, shape in shapes.items()}


def value(name, shape):
    if "time_mix" in name or "time_maa" in name or ".x_" in name:
        return torch.rand(shape)
    if ".ln" in name or name.startswith("ln"):
        return 0.3 * torch.randn(shape) + float(name.endswith("weight"))
    return 0.5 * torch.randn(shape) - float("time_decay" in name)


LONG = (
    *(("emb.", "rwkv.embeddings."), ("ln_out.", "rwkv.ln_out."), (".ln0.", ".pre_ln.")),
    *((".att.", ".attention."), (".ffn.", ".feed_forward."), ("time_mix_key", "time_mix_key")),
)


def long(name):
    """The name in transformers' layout."""
    for i, word in zip("kvrg", ("key", "value", "receptance", "gate"), strict=True):
        if name.endswith(f"time_mix_{i}"):
            name = name[:-1] + word
    for short, other in LONG:
        name = name.replace(short, other)
    return f"rwkv.{name}" if name.startswith("blocks.") else name


def folder(path, version, weights=None, **said):
    """As the public ones of transformers' layout are."""
    weights = checkpoint(version) if weights is None else weights
    path.mkdir(exist_ok=True)
    file = path / "model.safetensors"
    save_file({long(n): w.contiguous() for n, w in weights.items()}, file, {"format": "pt"})
    config = {
        **{"model_type": f"rwkv{version}", "vocab_size": V, "hidden_size": D},
        **{"num_hidden_layers": LAYERS, "head_size": N, "bos_token_id": 0, "eos_token_id": 0},
        **{"attention_hidden_size": D, "intermediate_size": None, "head_size_divisor": 8},
        **{"layer_norm_epsilon": 1e-5, "tie_word_embeddings": False, "rescale_every": 6},
    }
    (path / "config.json").write_text(json.dumps(config | said))
    return path


def read(path, weights):
    save_file(weights, path / "weights.safetensors")
    return from_rwkv(path / "weights.safetensors")


@VERSION
def test_logits_are_those_of_the_package(version, tmp_path, monkeypatch):
    weights = checkpoint(version)
    torch.save(weights, tmp_path / "theirs.pth")
    package = load(monkeypatch, seven=version == 7).RWKV
    quiet = {} if version == 7 else {"verbose": False}
    theirs = package(str(tmp_path / "theirs"), "cpu fp32", **quiet)
    ours, ids = read(tmp_path, weights), torch.randint(V, (1, 30))
    assert not any(x.is_meta for x in (*ours.parameters(), *ours.buffers()))
    expected, _ = theirs.forward(ids[0].tolist(), None, full_output=True)
    steps, state = [], None
    for token in ids[0].tolist():
        y, state = theirs.forward([token], state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps), expected, rtol=1e-3, atol=1e-3)
    assert expected.std() > 0.1
    with torch.no_grad():
        first = ours(ids[:, :11])
        pieces = [first.logits]
        for part in (ids[:, 11:12], ids[:, 12:]):
            first = ours(part, past_key_values=first.past_key_values)
            pieces.append(first.logits)
        size = expected.abs().max()
        for got in (ours(ids).logits[0], torch.cat(pieces, 1)[0]):
            torch.testing.assert_close(got / size, expected / size, rtol=0, atol=1e-4)


@VERSION
def test_the_same_tensors_come_back(version, tmp_path):
    weights = checkpoint(version)
    back = to_rwkv_weights(read(tmp_path, weights))
    assert back.keys() == weights.keys()
    for name, weight in weights.items():
        assert back[name].shape == weight.shape, name
        # ours are the parts of the current step
        rounding = 2**-24 if "ffn.time_maa" in name or "ffn.x_k" in name else 0
        torch.testing.assert_close(back[name], weight, rtol=0, atol=rounding)
    flat = {name: weight.squeeze() for name, weight in weights.items()}
    assert all(torch.equal(x, back[n]) for n, x in to_rwkv_weights(read(tmp_path, flat)).items())


def test_rwkv7_goes_to_flash_linear_attention_and_back(tmp_path):
    weights = checkpoint(7)
    ours, ids = read(tmp_path, weights), torch.randint(V, (2, 9))
    ours.config.mixer_options["norm_eps"] = N * 1e-5
    for mixer in ours.model.mixers:
        mixer.norm_eps = N * 1e-5
    theirs = to_rwkv_weights(ours, names="fla")
    assert theirs["model.layers.1.attn.v_lora.lora.0.weight"].shape == (2, D)
    assert theirs["model.layers.2.attn.w_lora.lora.2.bias"].shape == (D,)
    assert "model.layers.0.attn.v_lora.lora.2.bias" not in theirs
    assert {n for n in theirs if not n.startswith("model.")} == {"lm_head.weight"}
    (tmp_path / "fla").mkdir()
    save_file(theirs, tmp_path / "fla" / "model.safetensors", {"format": "pt"})
    config = {
        **{"model_type": "rwkv7", "hidden_size": D, "num_hidden_layers": LAYERS, "vocab_size": V},
        **{"head_dim": N, "num_heads": H, "norm_eps": 1e-5, "norm_first": True, "attn": None},
        **{"intermediate_size": F, "hidden_act": "sqrelu", "decay_low_rank_dim": 3},
        **{"v_low_rank_dim": None, "value_dim": [D] * LAYERS, "tie_word_embeddings": False},
    }
    (tmp_path / "fla" / "config.json").write_text(json.dumps(config))
    again = from_rwkv(tmp_path / "fla")
    assert again.model.mixers[0].norm_eps == N * 1e-5
    assert torch.equal(again(ids).logits, ours(ids).logits)
    mixed = {n: x for n, x in theirs.items() if ".attn.x_" not in n}  # as before October 2025
    for i in range(LAYERS):
        rows = [theirs[f"model.layers.{i}.attn.x_{j}"].flatten() for j in "rwkvag"]
        mixed[f"model.layers.{i}.attn.x_x"] = torch.stack(rows)
    save_file(mixed, tmp_path / "fla" / "model.safetensors", {"format": "pt"})
    assert torch.equal(from_rwkv(tmp_path / "fla")(ids).logits, ours(ids).logits)
    for name, other in {"norm_first": False, "head_dim": 4, "gate_low_rank_dim": 1}.items():
        (tmp_path / "fla" / "config.json").write_text(json.dumps(config | {name: other}))
        with pytest.raises(DataError, match=f"{name} must be"):
            from_rwkv(tmp_path / "fla")


def test_what_rwkv7_never_reads_may_be_there(tmp_path):
    weights = checkpoint(7)
    ids = torch.randint(V, (1, 9))
    expected = read(tmp_path, weights)(ids).logits
    unread = {"v0": ROW, "v1": (D, 2), "v2": (2, D)}
    more = weights | {f"blocks.0.att.{n}": torch.ones(shape) for n, shape in unread.items()}
    assert torch.equal(read(tmp_path, more)(ids).logits, expected)


@pytest.mark.parametrize("version", [5, 6])
def test_a_folder_has_longer_names(version, tmp_path):
    weights = checkpoint(version)
    expected, ids = read(tmp_path, weights), torch.randint(V, (2, 9))
    ours = from_rwkv(folder(tmp_path / "folder", version, weights))
    assert torch.equal(ours(ids).logits, expected(ids).logits)
    assert (ours.config.eos_token_id, expected.config.eos_token_id) == (0, None)
    assert ours.generation_config.eos_token_id == 0
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert torch.equal(again(ids).logits, expected(ids).logits)


def test_a_file_of_half_precision_gives_such_a_model(tmp_path):
    weights = {name: x.bfloat16() for name, x in checkpoint(6).items()}
    ours = read(tmp_path, weights)
    kept = {n for n, _ in ours.named_parameters() if n.endswith("time_decay")}
    others = {x.dtype for n, x in ours.named_parameters() if n not in kept}
    assert kept
    assert others == {torch.bfloat16}
    assert all(x.requires_grad for x in ours.parameters())
    weights["blocks.0.att.ln_x.weight"] = weights["blocks.0.att.ln_x.weight"].float()
    assert {x.dtype for x in read(tmp_path, weights).parameters()} == {torch.float32}


@pytest.mark.parametrize("option", OTHER)
@VERSION
def test_every_option_is_converted_or_refused(version, option, tmp_path):
    values = read(tmp_path, checkpoint(version)).config.to_dict()
    values[option] = not values[option] if OTHER[option] is None else OTHER[option]
    try:
        ours = shaken(LinrnnForCausalLM(LinrnnConfig.from_dict(values)))
        weights = to_rwkv_weights(ours)
    except LinrnnError:
        return
    check_equal(ours, read(tmp_path, weights))


CUT, NAME = object(), "blocks.1.att.time_decay"
FAULTS = {
    "no tensor": (5, NAME, CUT, r"those of RWKV-5, got 1 missing, such as blocks\.1\.att\.time_d"),
    "one more": (6, "blocks.0.att.time_state", torch.ones(H, N, N), "got 1 more, such as blocks.0"),
    "another block": (4, "blocks.7.ln1.bias", torch.ones(D), "got 18 missing, such as blocks.3"),
    "decays of heads": (5, NAME, torch.ones(H), r"time_decay must have shape \(2, 6\), got \(2,\)"),
    "a turned matrix": (
        *(6, "blocks.0.att.time_maa_w1", torch.ones(15, D)),
        r"shape \(5, \d, 12\), got|time_maa_w. must have shape",
    ),
    "other axes": (6, "emb.weight", torch.ones(V), r"emb.weight must have two axes, got .*\(41,\)"),
    "no width": (5, "emb.weight", torch.ones(V, 0), "d_model must be an integer of at least 1"),
    "integers": (5, NAME, torch.ones(H, N, dtype=torch.int32), "real numbers, got blocks.1.att.ti"),
    "not numbers": (4, "ln_out.bias", torch.full((D,), torch.nan), "finite, got final_norm.bias"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("fault", FAULTS)
def test_other_tensors_are_refused(fault, tmp_path):
    version, name, other, message = FAULTS[fault]
    weights = checkpoint(version)
    read(tmp_path, weights)
    weights = {**weights, name: other}
    if other is CUT:
        del weights[name]
    with pytest.raises(LinrnnError, match=message):
        read(tmp_path, weights)


SAID = {
    "model_type": ("rwkv6", "of RWKV-4, 5.2, 6 or 7, as the configuration beside them says"),
    "vocab_size": (40, "vocab_size must be 41 for these weights, got 40"),
    "num_hidden_layers": (2, "num_hidden_layers must be 3 for these weights, got 2"),
    "head_size": (12, "head_size must be 6 for these weights, got 12"),
    "layer_norm_epsilon": (0.1, "layer_norm_epsilon must be 1e-05 for these weights, got 0.1"),
    "head_size_divisor": (1, "head_size_divisor must be 8 for these weights, got 1"),
    "tie_word_embeddings": (True, "tie_word_embeddings must be False"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("name", SAID)
def test_a_configuration_of_something_else_is_refused(name, tmp_path):
    other, message = SAID[name]
    with pytest.raises(DataError, match=message):
        from_rwkv(folder(tmp_path, 5, **{name: other}))


@pytest.mark.unchecked
def test_what_is_no_file_of_rwkv_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"got a pickle, which can run code.*weights_only=True"):
        from_rwkv(tmp_path / "model.pth")
    with pytest.raises(DataError, match="complete and in safetensors, got"):
        from_rwkv(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("not what it says")
    with pytest.raises(DataError, match="complete and in safetensors, got"):
        from_rwkv(tmp_path / "text.safetensors")
    for weights in ({}, {"blocks.0.att.x": torch.ones(2)}):
        with pytest.raises(DataError, match=r"those of RWKV-4, 5\.2, 6 or 7.*got [01] tensor"):
            read(tmp_path, weights)
    with pytest.raises(DTypeError, match=r"from_rwkv: model must be .* a file of .*, got int"):
        from_rwkv(3)


def own(mixer, **options):
    block = {"norm": "layer", "block": "channel_mix", "encoder_norm": True, "head_bias": False}
    config = LinrnnConfig(mixer=mixer, d_model=8, **{"n_layers": 1} | block | options)
    return LinrnnForCausalLM(config)


BAD = [
    (lambda: own("gla"), "mixer must be 'rwkv4', 'rwkv5', 'rwkv6' or 'rwkv7' to be .*, got 'gla'"),
    (lambda: own("rwkv7"), "block must be 'relu_mix' to be converted, got 'channel_mix'"),
    (
        lambda: own("rwkv7", block="relu_mix", n_layers=2, mixer_options={"value_rank": 0}),
        "value_rank must be at least 1 to be converted",
    ),
    (lambda: own("rwkv5", mixer_options={"norm_eps": 0.1}), "norm_eps must be 0.00064 .* got 0.1"),
    (lambda: own("rwkv6", norm_eps=0.1), "norm_eps must be 1e-05 to be converted, got 0.1"),
    (lambda: own("rwkv4", mixer_options={"token_shift": False}), "token_shift must be True"),
    (lambda: own("rwkv6", head_bias=True), "the head must have no bias"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_has_no_counterpart_is_refused(make, message):
    with pytest.raises(LinrnnError, match=f"to_rwkv_weights: .*{message}"):
        to_rwkv_weights(make())
