"""Weights of transformers' models in and out: equal logits, the same tensors back."""

from functools import partial

import pytest
import torch

transformers = pytest.importorskip("transformers")

from linrnn.errors import ArgumentError, DataError, DTypeError, LinrnnError  # noqa: E402
from linrnn.interop._hf_config import OPTIONS as MODEL_OPTIONS  # noqa: E402
from linrnn.interop.hf import (  # noqa: E402
    LinrnnConfig,
    LinrnnForCausalLM,
    from_mamba,
    from_mamba2,
    from_recurrent_gemma,
    from_rwkv,
    from_xlstm,
    to_mamba,
    to_mamba2,
    to_recurrent_gemma,
    to_rwkv,
    to_xlstm,
)

VOCABULARY = 41


def shaken(model):
    """Random in every weight, those that begin at 0 or 1 too."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def rwkv(**options):
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 12,
        "num_hidden_layers": 4,
        "bos_token_id": 3,
    }
    return shaken(transformers.RwkvForCausalLM(transformers.RwkvConfig(**config | options)))


def mamba(**options):
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 12,
        "num_hidden_layers": 3,
        "bos_token_id": 3,
    }
    return shaken(transformers.MambaForCausalLM(transformers.MambaConfig(**config | options)))


def mamba2(**options):
    config = {
        **{"vocab_size": VOCABULARY, "hidden_size": 12, "num_hidden_layers": 3, "bos_token_id": 3},
        **{"num_heads": 4, "head_dim": 6, "n_groups": 2, "state_size": 5, "chunk_size": 8},
    }
    return shaken(transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**config | options)))


def gemma(**options):
    config = {
        **{"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 5, "bos_token_id": 3},
        **{"intermediate_size": 144, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"attention_window_size": 7, "logits_soft_cap": 2.0},
    }
    made = transformers.RecurrentGemmaConfig(**config | options)
    return shaken(transformers.RecurrentGemmaForCausalLM(made))


def xlstm(**options):
    config = {
        **{"vocab_size": VOCABULARY, "hidden_size": 12, "num_hidden_layers": 3, "bos_token_id": 3},
        **{"num_heads": 2, "ffn_round_up_to_multiple_of": 8, "chunk_size": 16, "use_cache": False},
    }
    return shaken(transformers.xLSTMForCausalLM(transformers.xLSTMConfig(**config | options)))


CASES = {
    "rwkv": (rwkv, from_rwkv, to_rwkv, {}),
    "rwkv rescaled": (rwkv, from_rwkv, to_rwkv, {"rescale_every": 2}),
    "rwkv tied": (rwkv, from_rwkv, to_rwkv, {"tie_word_embeddings": True, "rescale_every": 0}),
    "rwkv of another width": (rwkv, from_rwkv, to_rwkv, {"intermediate_size": 7}),
    "mamba": (mamba, from_mamba, to_mamba, {}),
    "mamba untied": (mamba, from_mamba, to_mamba, {"tie_word_embeddings": False}),
    "mamba with other sizes": (
        *(mamba, from_mamba, to_mamba),
        {
            **{"state_size": 5, "conv_kernel": 3, "expand": 3, "time_step_rank": 2},
            **{"use_bias": True, "use_conv_bias": False, "layer_norm_epsilon": 0.1},
        },
    ),
    "mamba2": (mamba2, from_mamba2, to_mamba2, {}),
    "mamba2 tied": (mamba2, from_mamba2, to_mamba2, {"tie_word_embeddings": True}),
    "mamba2 with other sizes": (
        *(mamba2, from_mamba2, to_mamba2),
        {
            **{"conv_kernel": 3, "expand": 3, "num_heads": 6, "n_groups": 3},
            **{"use_bias": True, "use_conv_bias": False, "layer_norm_epsilon": 0.1},
        },
    ),
    "griffin": (gemma, from_recurrent_gemma, to_recurrent_gemma, {}),
    "griffin with other sizes": (
        *(gemma, from_recurrent_gemma, to_recurrent_gemma),
        {
            **{
                "lru_width": 30,
                "conv1d_width": 3,
                "num_attention_heads": 3,
                "attention_bias": True,
            },
            **{"num_key_value_heads": 3, "tie_word_embeddings": False, "rms_norm_eps": 0.1},
            "rope_parameters": {
                **{"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.75}
            },
            "block_types": ["attention", "recurrent"],
        },
    ),
    "hawk": (
        *(gemma, from_recurrent_gemma, to_recurrent_gemma),
        {"block_types": ["recurrent"], "num_hidden_layers": 2, "use_cache": False},
    ),
    "xlstm": (xlstm, from_xlstm, to_xlstm, {}),
    "xlstm with other sizes": (
        *(xlstm, from_xlstm, to_xlstm),
        {
            **{"num_heads": 3, "qk_dim_factor": 1.3, "v_dim_factor": 0.8, "ffn_proj_factor": 1.1},
            **{"gate_soft_cap": 2.0, "output_logit_soft_cap": 3.0, "norm_eps": 0.1},
        },
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def check_equal(ours, theirs):
    """To 1e-4 of the size of the logits."""
    ids = torch.randint(VOCABULARY, (2, 30))
    with torch.no_grad():
        expected = theirs(ids).logits
        assert expected.std() > 0.1  # there is something to compare
        size = expected.abs().max()
        found = [ours(ids).logits]
        if isinstance(ours, LinrnnForCausalLM):
            first = ours(ids[:, :9])
            rest = ours(ids[:, 9:], past_key_values=first.past_key_values)
            found.append(torch.cat([first.logits, rest.logits], 1))
    for logits in found:
        torch.testing.assert_close(logits / size, expected / size, rtol=0, atol=1e-4)


@EVERY
def test_logits_are_equal_both_ways(case):
    make, into, back, options = case
    peer = make(**options)
    weights = {n: w.clone() for n, w in peer.state_dict().items()}
    ours = into(peer)
    check_equal(ours, peer)
    again = back(ours)
    assert type(again) is type(peer)
    for name, weight in again.state_dict().items():
        rounded = 2e-7 if type(peer) is transformers.RecurrentGemmaForCausalLM else 0
        allowed = rounded if name.endswith("norm.weight") else 0  # ours are theirs and 1
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=allowed, msg=name)
    check_equal(again, peer)
    check_equal(into(peer), peer)  # a call has rescaled the weights of RWKV
    assert ours.config.bos_token_id == again.config.bos_token_id == 3


@EVERY
def test_gradients_are_equal(case):
    make, into, back, options = case
    peer = make(**options).train()
    # 0 fills rows up in some of theirs, and has no gradient there
    ours, ids = into(peer).train(), torch.randint(1, VOCABULARY, (2, 20))
    for model in (ours, peer):
        model(ids).logits.square().mean().backward()
    ways = []  # of the weights, which may be shifted as well
    for factor in (1, 0):
        with torch.no_grad():
            for weight in ours.parameters():
                weight.copy_(factor * weight.grad)
        ways.append(dict(back(ours).named_parameters()))
    got, shift = ways
    for name, weight in peer.named_parameters():
        size = weight.grad.abs().max()
        assert size > 0, name
        found = (got[name] - shift[name]) / size
        torch.testing.assert_close(found, weight.grad / size, rtol=0, atol=1e-3)


OTHER = {
    **{"norm": "none", "norm_eps": 0.5, "prenorm": False, "dropout": 0.5, "conv_width": 2},
    **{"d_ffn": 7, "encoder_norm": None, "final_norm": None, "head_bias": True},
    **{"logit_soft_cap": 0.3, "block": "mlp", "d_model": 24, "n_layers": 1},
    **{"tie_word_embeddings": None, "encoder_scale": 0.7, "skip": False},
    **{"tiers": (2,), "expand": 3, "unet": True, "identity_ends": "in"},
    **{"block_pattern": ("mlp",), "residual_scale": 0.6, "head_scale": 0.8},
    **{"skip_scale": 0.7, "out_norm": ("rwkv4", "mamba", "mamba2", "mlstm_large", "rg_lru")},
    "ends_init": "rwkv",
}
"""Another value of every option; None is for not what it is."""


@pytest.mark.parametrize("option", OTHER)
@pytest.mark.parametrize("layout", ["rwkv", "mamba", "mamba2", "xlstm", "griffin"])
def test_every_option_is_converted_or_refused(layout, option):
    make, into, back, options = CASES[layout]
    values = into(make(**options)).config.to_dict()
    assert OTHER.keys() >= values.keys() & set(MODEL_OPTIONS)
    values[option] = not values[option] if OTHER[option] is None else OTHER[option]
    try:
        ours = shaken(LinrnnForCausalLM(LinrnnConfig.from_dict(values)))
        theirs = back(ours)
    except LinrnnError:
        return
    check_equal(ours, theirs)


@EVERY
def test_a_folder_is_read_by_the_same_call(case, tmp_path):
    make, into, _, options = case
    peer = make(**options)
    peer.save_pretrained(tmp_path)
    check_equal(into(tmp_path), peer)
    check_equal(into(str(tmp_path)), peer)


def test_limits_of_step_sizes_go_both_ways():
    """Whole sequences alone: single steps of transformers forget the limits."""
    peer, ids = mamba2(time_step_limit=(0.5, 0.9)), torch.randint(VOCABULARY, (2, 21))
    ours = from_mamba2(peer)
    assert not torch.equal(ours(ids).logits, from_mamba2(mamba2())(ids).logits)
    torch.testing.assert_close(ours(ids).logits, peer(ids).logits, rtol=1e-4, atol=1e-4)
    back = to_mamba2(ours)
    assert tuple(back.config.time_step_limit) == (0.5, 0.9)
    torch.testing.assert_close(back(ids).logits, peer(ids).logits)


@pytest.mark.parametrize(("make", "into"), [(mamba, from_mamba), (gemma, from_recurrent_gemma)])
def test_generation_is_that_of_transformers(make, into):
    peer, ids = make(), torch.randint(VOCABULARY, (2, 6))
    ours, mask = into(peer), torch.ones(2, 6, dtype=torch.long)
    kwargs = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 8}
    assert torch.equal(ours.generate(ids, **kwargs), peer.generate(ids, **kwargs))


def test_xlstm_is_read_in_pieces_by_both():
    peer = to_xlstm(from_xlstm(xlstm(hidden_size=128, num_hidden_layers=1)))
    ours, ids = from_xlstm(peer), torch.randint(VOCABULARY, (2, 30))
    cache, state = None, None
    with torch.no_grad():
        for part in ids.split([17, 1, 12], 1):
            theirs = peer(part, cache_params=cache)
            mine = ours(part, past_key_values=state)
            cache, state = theirs.cache_params, mine.past_key_values
            torch.testing.assert_close(mine.logits, theirs.logits, rtol=1e-4, atol=1e-4)
    assert cache is not None


def test_a_converted_model_is_saved_as_one_of_ours(tmp_path):
    ours = from_rwkv(rwkv())
    ours.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(VOCABULARY, (1, 9))
    assert torch.equal(again(ids).logits, ours(ids).logits)
    assert set(to_rwkv(again).state_dict()) == set(rwkv().state_dict())


def test_a_larger_vocabulary_is_bounded_as_well():
    ours = from_recurrent_gemma(gemma(tie_word_embeddings=False, logits_soft_cap=0.1))
    ours.resize_token_embeddings(VOCABULARY + 3)
    logits = ours(torch.randint(VOCABULARY, (1, 9))).logits
    assert logits.shape[-1] == VOCABULARY + 3
    assert 0.05 < logits.abs().max() <= 0.1


def own(mixer, **options):
    config = {"mixer": mixer, "d_model": 8, "n_layers": 1}
    return LinrnnForCausalLM(LinrnnConfig(**config | options))


RWKV = {"norm": "layer", "block": "channel_mix", "encoder_norm": True}
MAMBA = {"norm": "rms", "block": "bare"}
MAMBA2 = MAMBA | {"norm_eps": 1e-5}
GRIFFIN = {"norm": "rms", "block": "geglu", "encoder_scale": 2.828125}
PLAIN = {
    "rwkv": (to_rwkv, "rwkv4", RWKV),
    "mamba": (to_mamba, "mamba", MAMBA),
    "mamba2": (to_mamba2, "mamba2", MAMBA2),
}


def outside(name, _):
    """A model that no layout but that of RecurrentGemma can hold."""
    to, mixer, options = PLAIN[name]
    return to(own(mixer, encoder_scale=2.0, n_layers=2, **options))


XLSTM = {"norm": "rms", "block": "swiglu", "final_norm": True}


def fused(path):
    """A folder of the layout that transformers itself cannot start."""
    xlstm().save_pretrained(path)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"single"', '"fused"'))
    return path


BAD = [
    (lambda _: to_rwkv(own("mamba", **RWKV)), "to_rwkv: mixer must be 'rwkv4'.*got 'mamba'"),
    (lambda _: to_rwkv(own("rwkv4")), "to_rwkv: block must be 'channel_mix'.*got 'glu'"),
    (lambda _: to_mamba(own("mamba")), "to_mamba: norm must be 'rms'.*got 'layer'"),
    (
        lambda _: to_rwkv(own("rwkv4", mixer_options={"token_shift": False}, **RWKV)),
        "token_shift must be True",
    ),
    (
        lambda _: to_mamba(own("mamba", mixer_options={"b_disc": "zoh"}, **MAMBA)),
        "b_disc must be 'euler', got 'zoh'",
    ),
    (
        lambda _: to_mamba(own("mamba", mixer_options={"selective_B": False}, **MAMBA)),
        "selective_B must be True, got False",
    ),
    (
        lambda _: to_mamba(own("mamba", mixer_options={"bcdt_norm": "rms"}, **MAMBA)),
        "to_mamba: bcdt_norm must be 'none', got 'rms'",
    ),
    (
        lambda _: to_mamba2(
            own("mamba2", mixer_options={"rmsnorm": False}, **MAMBA, norm_eps=1e-5)
        ),
        "to_mamba2: rmsnorm must be True, got False",
    ),
    (
        lambda _: to_mamba2(own("mamba2", mixer_options={"d_ssm": 8}, **MAMBA2)),
        "to_mamba2: d_ssm must be 16, got 8",
    ),
    (lambda _: to_mamba(own("mamba", **MAMBA)), "the head must have no bias"),
    (lambda _: to_mamba(own("mamba", tiers=(2,), **MAMBA)), r"tiers must be \(\) to be converted"),
    (lambda _: from_mamba(mamba(hidden_act="relu")), "hidden_act must be 'silu'.*got 'relu'"),
    (
        lambda _: from_rwkv(rwkv(layer_norm_epsilon=0.1)),
        "from_rwkv: layer_norm_epsilon must be 1e-05 to be converted, got 0.1",
    ),
    (lambda _: to_xlstm(own("lru", **XLSTM)), "to_xlstm: mixer must be 'mlstm_large'.*got 'lru'"),
    (lambda _: to_xlstm(own("mlstm_large", **XLSTM)), "to_xlstm: logit_soft_cap must be a number"),
    (
        lambda _: to_xlstm(own("mlstm_large", logit_soft_cap=3.0, norm_eps=0.1, **XLSTM)),
        "to_xlstm: the mixer's norm_eps must be that of the model, 0.1, .*got 1e-06",
    ),
    (
        lambda _: from_xlstm(xlstm(use_bias=True)),
        "from_xlstm: use_bias must be False to be converted, got True",
    ),
    (lambda _: from_xlstm(xlstm(eps=0.1)), "from_xlstm: eps must be 1e-06 to be converted, got"),
    (
        lambda _: from_xlstm(xlstm(output_logit_soft_cap=0.0)),
        "output_logit_soft_cap must be positive and finite to be converted, got 0.0",
    ),
    (lambda path: from_xlstm(fused(path)), "weight_mode must be 'single' .*got 'fused'"),
    (lambda _: from_rwkv(mamba()), "must be a RwkvForCausalLM.*got MambaForCausalLM"),
    (
        lambda _: from_recurrent_gemma(gemma(intermediate_size=140)),
        "intermediate_size must be 144 to be converted, got 140",
    ),
    (lambda _: to_recurrent_gemma(own("rg_lru", **MAMBA)), "block must be 'geglu'.*got 'bare'"),
    (lambda _: to_recurrent_gemma(own("rg_lru", **GRIFFIN)), "logit_soft_cap must be a number"),
    (
        lambda _: to_recurrent_gemma(own("lru", logit_soft_cap=1.0, **GRIFFIN)),
        "mixers must be rg_lru and attention, got LRU",
    ),
    (
        lambda _: to_recurrent_gemma(own("attention", logit_soft_cap=1.0, **GRIFFIN)),
        "attention.window must be a number, got None",
    ),
    (
        lambda _: to_recurrent_gemma(own("rg_lru", **GRIFFIN | {"encoder_scale": 1.0})),
        "encoder_scale must be 2.828125 to be converted, got 1.0",
    ),
    *((partial(outside, name), f"to_{name}: encoder_scale must be 1.0") for name in PLAIN),
    (lambda path: from_mamba(path), "a model's folder must hold its configuration"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("call", "message"), BAD)
def test_what_has_no_counterpart_is_refused(call, message, tmp_path):
    with pytest.raises((ArgumentError, DataError, DTypeError), match=message):
        call(tmp_path)


@pytest.mark.unchecked
def test_a_head_whose_bias_is_zero_can_be_converted():
    model = own("mamba", **MAMBA)
    torch.nn.init.zeros_(model.model.head.bias)
    ids = torch.randint(256, (1, 5))
    torch.testing.assert_close(to_mamba(model.eval())(ids).logits, model(ids).logits)


@pytest.mark.unchecked
def test_the_folder_of_another_layout_is_refused(tmp_path):
    mamba().save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"must be 'rwkv' or .* or 'rwkv7_fla', got 'mamba'"):
        from_rwkv(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not what it was")
    with pytest.raises(DataError, match="from_mamba"):
        from_mamba(tmp_path)
