"""Layers of transformers that read a token in one native call: which do, and when not."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

from accelerated import FAMILIES, VOCABULARY, build, plain  # noqa: E402
from linrnn.compute import native  # noqa: E402
from linrnn.engine.replay import step  # noqa: E402
from linrnn.interop import accelerate  # noqa: E402

WIDTH, TOKENS = 64, 6
#: Layers with a mixture of experts choose among them, which no program does: their mixer is one.
EXPERTS = {"qwen3_next", "qwen3_5_moe", "kimi_linear", "bailing_hybrid", "lfm2_moe"}
EXPERTS |= {"granitemoehybrid"}

pytestmark = pytest.mark.skipif(
    native.load()[0] is None, reason="the native kernels are not installed"
)


@pytest.fixture
def model(request):
    transformers.logging.set_verbosity_error()
    model = build(getattr(request, "param", "mamba2"), WIDTH)
    with plain(model):
        yield model


def programs(model):
    """How many instructions each module's programs have."""
    kinds = [
        (part, kind) for part in model.modules() for kind in step._kinds.get(part, {}).values()
    ]
    return {part: kind.program.count for part, kind in kinds if kind.program is not None}


def write(model, rows=1, **options):
    """Tokens that a model writes after a prompt that is the same every time."""
    ids = torch.randint(2, VOCABULARY, (rows, 9), generator=torch.Generator().manual_seed(1))
    few = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    return model.generate(ids, **few | options)


def logits_by_token(model, ids):
    """Logits of every token after the first two, each read by a call of its own."""
    with torch.no_grad():
        answer = model(ids[:, :2], use_cache=True)
        name = next(x for x in ("past_key_values", "cache_params", "state") if x in answer)
        cache, logits = answer[name], []
        for t in range(2, ids.shape[1]):
            answer = model(ids[:, t : t + 1], use_cache=True, **{name: cache})
            cache = answer[name]
            logits.append(answer.logits)
    return torch.cat(logits, 1)


#: Of each way to hold states one; the others are slow tests.
QUICK = ("mamba2", "qwen3_5", "kimi_linear", "lfm2", "bamba", "recurrent_gemma", "rwkv", "xlstm")


@pytest.mark.parametrize(
    "model",
    [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in FAMILIES],
    indirect=True,
)
def test_every_family_generates_by_native_calls(model):
    family = model.config.model_type.removesuffix("_text")
    expected = write(model)
    for _ in range(2):  # what was recorded may be there from before
        with accelerate(model):
            assert torch.equal(write(model), expected)
            layers = programs(model)
    assert layers, family
    whole = [x for x in layers if type(x).__name__.endswith(("Layer", "Block"))]
    if family not in EXPERTS | {"falcon_h1"}:  # attention stands beside Mamba-2 in its layers
        assert whole, {type(x).__name__ for x in layers}


@pytest.mark.parametrize("model", ["mamba2", "qwen3_5", "recurrent_gemma", "xlstm"], indirect=True)
def test_rows_beams_and_padding(model):
    padded = torch.ones(3, 9, dtype=torch.long)
    padded[0, :4] = padded[2, :1] = 0
    calls = [{"rows": 3}, {"rows": 20}]
    calls += [{"num_beams": 3}] * (model.config.model_type != "xlstm")  # which refuses them
    calls += [{"rows": 3, "attention_mask": padded}] * (model.config.model_type == "qwen3_5_text")
    expected = [write(model, **options) for options in calls]
    with accelerate(model):
        for options, tokens in zip(calls, expected, strict=True):
            assert torch.equal(write(model, **options), tokens), options
        assert programs(model)


@pytest.mark.parametrize("model", ["lfm2"], indirect=True)  # others transformers refuses
def test_a_smaller_model_assists(model):
    assistant = copy.deepcopy(model)
    with torch.no_grad():
        for x in assistant.parameters():
            x.add_(0.02 * torch.randn_like(x))
    expected = write(model, assistant_model=assistant)
    with accelerate(model), accelerate(assistant):
        assert torch.equal(write(model, assistant_model=assistant), expected)


@pytest.mark.parametrize("model", ["mamba", "kimi_linear", "rwkv"], indirect=True)
def test_weights_that_changed_are_read(model):
    ids = torch.randint(2, VOCABULARY, (1, 8))
    with accelerate(model):
        logits_by_token(model, ids)
        assert programs(model)
        with torch.no_grad():
            for x in model.parameters():  # where they are, and in new memory
                x.mul_(1.1)
            for part in model.modules():
                if isinstance(part, torch.nn.Linear):
                    part.weight = torch.nn.Parameter(part.weight * 0.9)
        changed = logits_by_token(model, ids)
    torch.testing.assert_close(changed, logits_by_token(model, ids), rtol=1e-4, atol=1e-5)


def test_hooks_inside_of_a_layer_are_called(model):
    with accelerate(model):
        write(model)
        before, calls = programs(model), []
        part = next(x for x in model.modules() if type(x).__name__ == "Mamba2Mixer").in_proj
        handle = part.register_forward_hook(lambda *_: calls.append(1))
        write(model)
        assert before
        assert len(calls) == TOKENS  # the prompt, and every token but the last
        handle.remove()
        assert torch.equal(write(model), write(model))


def test_states_are_written_where_they_are(model):
    ids = torch.randint(2, VOCABULARY, (1, 5))
    with accelerate(model), torch.no_grad():
        cache = model(ids, use_cache=True).cache_params
        states = cache.layers[0].conv_states[0], cache.layers[0].recurrent_states[0]
        before = [x.clone() for x in states]
        other = copy.deepcopy(cache)
        model(ids[:, :1], cache_params=cache, use_cache=True)
        assert programs(model)
        for x, y, z in zip(states, before, _states(other), strict=True):
            assert not torch.equal(x, y)
            assert torch.equal(y, z)
        assert cache.layers[0].conv_states[0] is states[0]


def _states(cache):
    return cache.layers[0].conv_states[0], cache.layers[0].recurrent_states[0]


def test_a_layer_that_cannot_be_recorded_reads_as_before(model):
    for part in model.modules():
        if type(part).__name__ == "Mamba2Mixer":
            part.activation = "tanh"  # which no convolution of ours has
    expected = write(model)
    with accelerate(model):
        assert torch.equal(write(model), expected)
        assert not programs(model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(model, dtype):
    model = model.to(dtype)
    ids = torch.randint(2, VOCABULARY, (2, 8))
    expected = logits_by_token(model, ids)
    with accelerate(model):
        y = logits_by_token(model, ids)
    tolerance = {torch.float64: 1e-5, torch.bfloat16: 5e-2}[dtype]  # their states are float32
    assert y.dtype == expected.dtype
    assert (y - expected).norm() <= tolerance * expected.norm()


def test_a_layer_that_answers_more_than_a_tensor_stays(model, monkeypatch):
    kind = type(model.backbone.layers[0])
    forward = kind.forward

    def more(self, hidden_states, cache_params=None, attention_mask=None, **kwargs):
        return forward(self, hidden_states, cache_params, attention_mask, **kwargs), {"a": 1}

    layer = model.backbone.layers[0]
    monkeypatch.setattr(kind, "forward", more)
    with accelerate(model), torch.no_grad():
        x = torch.randn(1, 1, WIDTH)
        cache = transformers.DynamicCache(config=model.config)
        for _ in range(3):
            y, rest = layer(x, cache_params=cache)
            assert y.shape == x.shape
            assert rest == {"a": 1}
        assert layer not in programs(model)
