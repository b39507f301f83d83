"""Hybrids with delta rules, lightning attention and short convolutions as models of ours."""

import inspect
import json
import sys

import pytest
import torch

pytest.importorskip("transformers")
import transformers
from hf_family_laws import laws, peer, plainly

from linrnn.compute import native
from linrnn.engine.replay import step as recorded_step
from linrnn.errors import ArgumentError, DataError
from linrnn.interop.hf import (
    LinrnnConfig,
    LinrnnForCausalLM,
    from_config,
    from_pretrained,
    to_pretrained,
)
from linrnn.state import leaves

SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
    **{"bos_token_id": 3, "eos_token_id": None, "pad_token_id": None},
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 256.0}}
QUARTER = {"rope_parameters": {**ROPE["rope_parameters"], "partial_rotary_factor": 0.25}}
NO_POSITIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": None}}
DELTA = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 6, "linear_conv_kernel_dim": 3},
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 7}
DEEPSEEK = {
    **{"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7},
    **{"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "kv_lora_rank": 6},
    **{"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "num_key_value_heads": 4},
}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], **ROPE}
QWEN = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], **DELTA}
KIMI = {"linear_num_heads": 2, "linear_head_dim": 6, "linear_conv_kernel_dim": 3, **DEEPSEEK}
CASES = {
    "lfm2": ("Lfm2", {**LFM2, "block_multiple_of": 8}),
    "lfm2 with biases": (
        "Lfm2",
        {
            **{**LFM2, "block_auto_adjust_ff_dim": False, "conv_bias": True, "conv_L_cache": 2},
            **{"norm_eps": 0.1, "tie_word_embeddings": False},
        },
    ),
    "lfm2_moe": ("Lfm2Moe", {**LFM2, **EXPERTS, "num_dense_layers": 1}),
    "lfm2_moe of experts alone": (
        "Lfm2Moe",
        {
            **{**LFM2, **EXPERTS, "num_dense_layers": 0, "use_expert_bias": False},
            **{"norm_topk_prob": False, "routed_scaling_factor": 1.5},
        },
    ),
    "qwen3_5_text": ("Qwen3_5Text", {**QWEN, "head_dim": 16, **QUARTER}),
    "qwen3_5_text with biases": (
        "Qwen3_5Text",
        {**QWEN, "head_dim": 8, **QUARTER, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeText",
        {**QWEN, "head_dim": 8, **QUARTER, **EXPERTS, "shared_expert_intermediate_size": 9},
    ),
    "qwen3_next": (
        "Qwen3Next",
        {
            **{**QWEN, "head_dim": 8, **QUARTER, **EXPERTS, "shared_expert_intermediate_size": 9},
            **{"mlp_only_layers": [0], "norm_topk_prob": False},
        },
    ),
    "qwen3_next of experts alone": (
        "Qwen3Next",
        {**QWEN, "head_dim": 8, **QUARTER, **EXPERTS, "shared_expert_intermediate_size": 9},
    ),
    "olmo_hybrid": (
        "OlmoHybrid",
        {"layer_types": QWEN["layer_types"], "num_key_value_heads": 4, **NO_POSITIONS},
    ),
    "olmo_hybrid with positions": (
        "OlmoHybrid",
        {
            **{**QWEN, **ROPE, "attention_bias": True, "linear_allow_neg_eigval": False},
            **{"rms_norm_eps": 0.1, "tie_word_embeddings": True},
        },
    ),
    "kimi_linear": ("KimiLinear", {**KIMI, "layer_types": QWEN["layer_types"]}),
    "kimi_linear with a bottleneck": (
        "KimiLinear",
        {
            **{**KIMI, "q_lora_rank": 5, "attention_bias": True, "norm_topk_prob": False},
            **{"layer_types": QWEN["layer_types"], "mlp_layer_types": ["dense", "sparse", "dense"]},
        },
    ),
    "bailing_hybrid": (
        "BailingHybrid",
        {
            **{**DEEPSEEK, "head_dim": 6, "layer_group_size": 2, "first_k_dense_replace": 1},
            **{"num_mtp_layers": 0, "rope_theta": 256.0},
        },
    ),
    "bailing_hybrid without bounds": (
        "BailingHybrid",
        {
            **{**DEEPSEEK, "head_dim": 6, "layer_group_size": 3, "first_k_dense_replace": 0},
            **{"num_mtp_layers": 0, "rope_theta": 256.0, "kda_safe_gate": False},
        },
    ),
    "minimax": (
        "MiniMax",
        {**ROPE, "num_local_experts": 4, "block_size": 8, "head_dim": 6},
    ),
    "minimax with factors": (
        "MiniMax",
        {
            **{**ROPE, "num_local_experts": 4, "block_size": 8, "sliding_window": 5},
            **{f"{part}_alpha_factor": 3.5 for part in ("full_attn", "linear_attn", "mlp")},
            **{f"{part}_beta_factor": 0.5 for part in ("full_attn", "linear_attn", "mlp")},
        },
    ),
}
EVERY = pytest.mark.parametrize("case", CASES)


def config_of(case, **more):
    name, options = CASES[case]
    return getattr(transformers, f"{name}Config")(**SIZES | options | more)


@pytest.fixture(autouse=True)
def in_pytorch(monkeypatch):
    """Have transformers call its own functions, those of one step in the place of chunks.

    Its chunks of the delta rule subtract large sums of logarithms.
    """

    def plain(config):
        module = sys.modules[
            transformers.AutoModelForCausalLM._model_mapping[type(config)].__module__
        ]
        for name, function in list(vars(module).items()):
            if inspect.isfunction(function) and ("delta" in name or "causal_conv1d" in name):
                steps = getattr(module, name.replace("chunk", "recurrent"))
                monkeypatch.setattr(module, name, inspect.unwrap(steps))

    return plain


@EVERY
def test_hybrid(case, tmp_path, in_pytorch):
    config = config_of(case)
    in_pytorch(config)
    laws(config, tmp_path)


def test_an_imported_hybrid_streams_and_begins_anew(in_pytorch):
    """One state for layers of all kinds: resets in a batch, single steps, and a size that stays."""
    config = config_of("olmo_hybrid")
    in_pytorch(config)
    theirs = peer(config)
    model = from_pretrained(theirs).model
    ids, reset = torch.randint(30, (2, 24)), torch.zeros(2, 24, dtype=torch.bool)
    reset[0, 11] = reset[1, 5] = True
    with torch.no_grad():
        whole, _ = model(ids, reset=reset)
        torch.testing.assert_close(whole[:1, 11:], model(ids[:1, 11:])[0])
        state, outputs = model.init_state(1), []
        for token in ids[1, 5:].unbind():
            y, state = model.step(token[None], state)
            outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs), whole[1, 5:])
    sizes = [[x.shape for x in leaves(s["layers"][::2])] for s in (state, model.init_state(1))]
    assert sizes[0] == sizes[1]  # of gated DeltaNet


@pytest.mark.skipif(native.load()[0] is None, reason="the native kernels are not installed")
def test_with_a_window_an_imported_hybrid_streams_by_recorded_steps(in_pytorch):
    """The weights stay, attention sees 8 steps, and the state has one size for any stream."""
    config = config_of("olmo_hybrid")
    in_pytorch(config)
    whole = from_pretrained(peer(config).float())
    values = whole.config.to_dict()
    values["mixer_options"]["attention"]["window"] = 8
    bounded = LinrnnForCausalLM(LinrnnConfig.from_dict(values)).eval()
    bounded.load_state_dict(whole.state_dict())
    model, ids = bounded.model, torch.randint(30, (1, 30))
    state, outputs, sizes = model.init_state(1), [], set()
    with torch.no_grad():
        for token in ids[0].unbind():
            y, state = model.step(token[None], state)
            outputs.append(y)
            sizes.add(tuple(x.shape for x in leaves(state)))
        assert any(kind.program is not None for kind in recorded_step._kinds[model].values())
        torch.testing.assert_close(torch.stack(outputs, 1), model(ids)[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(ids[:, :8])[0], whole.model(ids[:, :8])[0])
    assert len(sizes) == 1


VISION = {
    **{"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "patch_size": 2},
    **{"out_hidden_size": 16, "num_position_embeddings": 16},
}


@pytest.mark.parametrize("kind", ["Qwen3_5", "Qwen3_5Moe"])
def test_the_language_model_in_a_model_of_images(kind, tmp_path, in_pytorch):
    case = "qwen3_5_text" if kind == "Qwen3_5" else "qwen3_5_moe_text"
    text = config_of(case)
    in_pytorch(text)
    config = getattr(transformers, f"{kind}Config")(
        text_config=text.to_dict(), vision_config=VISION
    )
    torch.manual_seed(0)
    theirs = plainly(getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval())
    ids = torch.randint(1, 30, (2, 13))
    with torch.no_grad():
        expected = theirs(ids).logits
    theirs.save_pretrained(tmp_path)
    for model in (theirs, tmp_path):
        ours = from_pretrained(model)
        torch.testing.assert_close(ours(ids).logits, expected, rtol=1e-4, atol=1e-5)
    again = plainly(to_pretrained(ours))
    assert again.config.model_type == text.model_type
    torch.testing.assert_close(again(ids).logits, expected, rtol=1e-4, atol=1e-5)
    values = json.loads((tmp_path / "config.json").read_text()) | {"text_config": None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match="text_config must be a table, got NoneType"):
        from_pretrained(tmp_path)


BAD = [
    ("lfm2", {"rope_parameters": QUARTER["rope_parameters"]}, "partial_rotary_factor must be 1.0"),
    ("qwen3_5_text", {"hidden_act": "gelu"}, "hidden_act must be 'silu' to be converted"),
    ("olmo_hybrid", {"attention_dropout": 0.1}, "attention_dropout must be 0.0"),
    ("minimax", {"mlp_alpha_factor": 2.0}, "full_attn_alpha_factor must be 2.0 to be converted"),
    ("minimax", {"router_jitter_noise": 0.1}, "router_jitter_noise must be 0.0"),
    ("kimi_linear", {"num_key_value_heads": 2}, "num_key_value_heads must be 4"),
    (
        "bailing_hybrid",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 256.0}},
        "rope_type must be 'default' to be converted, got 'linear'",
    ),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("case", "more", "message"), BAD)
def test_what_has_no_counterpart_is_refused(case, more, message):
    with pytest.raises(DataError, match=f"from_config: {message}"):
        from_config(config_of(case, **more))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("mixer", "option", "value"),
    [
        ("attention", "window", 5),
        ("attention", "gate", "none"),
        ("gated_delta_net", "beta_max", 1.5),
        ("gated_delta_net", "norm_weight", False),
    ],
)
def test_options_of_a_mixer_that_they_lack_are_refused(mixer, option, value):
    config = config_of("qwen3_5_text")
    ours = from_config(config)
    ours.mixer_options[mixer][option] = value
    with pytest.raises(
        ArgumentError, match=r"to_pretrained: mixer_options must be .*for a model of"
    ):
        to_pretrained(LinrnnForCausalLM(ours), config)
