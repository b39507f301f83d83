"""Whole models with weights of 8 and 4 bits."""

import copy

import pytest
import torch
from torch import nn

import linrnn
from linrnn.compute import native
from linrnn.engine.replay import program
from linrnn.errors import ArgumentError, ArgumentTypeError
from linrnn.nn import Linear
from linrnn.nn.quantized import QuantizedLinear
from linrnn.ops import explain
from linrnn.quantization import errors, quantize

MIXERS = ("gla", "mamba2", "mingru", "rwkv7", "lru", "gated_delta_net", "gru", "attention")
recorded = pytest.mark.skipif(
    native.load()[0] is None or not program.operations(),
    reason="the native kernels are not installed, or not these",
)


def language_model(mixer="gla", dtype=torch.float32, **options):
    torch.manual_seed(0)
    model = linrnn.SequenceModel(
        40, 40, mixer=mixer, d_model=64, n_layers=2, encoder="tokens", pool="none", **options
    )
    return model.to(dtype).eval()


def spelled_out(small):
    """A model of ordinary maps with the weights that are stored."""
    model = copy.deepcopy(small)
    for part in model.modules():
        for name, child in part.named_children():
            if isinstance(child, QuantizedLinear):
                bias = child.bias is not None
                plain = nn.Linear(child.in_features, child.out_features, bias)
                plain.weight.data = child.dequantize()
                if bias:
                    plain.bias = child.bias
                setattr(part, name, plain)
    return model


@recorded
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_model_is_that_of_the_stored_weights(mixer, bits):
    small = quantize(language_model(mixer), bits, 32)
    plain = spelled_out(small)
    tokens = torch.randint(40, (3, 9))
    with torch.no_grad():
        y, _ = small(tokens)
        torch.testing.assert_close(y, plain(tokens)[0], rtol=1e-4, atol=1e-4)
        state = small.init_state(3)
        for t in range(9):
            y_t, state = small.step(tokens[:, t], state)
            torch.testing.assert_close(y_t, y[:, t], rtol=1e-4, atol=1e-4)


@recorded
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_step_is_recorded_with_its_products(bits, symmetric, dtype):
    small = quantize(language_model("mamba2", dtype), bits, 64, symmetric=symmetric)
    tokens, state = torch.tensor([3, 5]), small.init_state(2)
    assert explain(small.step, tokens, state).startswith("one native call")
    with torch.no_grad():
        y, _ = small.step(tokens, state)
    expected = small.step(tokens, state)[0].detach()  # with gradients nothing is recorded
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)


@recorded
def test_a_record_notices_other_weights():
    small, other = (quantize(language_model("gla"), bits, 32) for bits in (8, 8))
    with torch.no_grad():
        other.head.packed.random_(0, 256)
        token, state = torch.tensor([3]), small.init_state(1)
        small.step(token, state)
        small.load_state_dict(other.state_dict())
        y, _ = small.step(token, state)
        small.head.packed = small.head.packed.clone()
        assert torch.equal(small.step(token, state)[0], y)
        torch.testing.assert_close(y, other.step(token, other.init_state(1))[0])


def test_double_precision_runs_as_it_is():
    small = quantize(language_model("gla", torch.float64), 8, 32)
    token, state = torch.tensor([3]), small.init_state(1)
    with torch.no_grad():
        y, _ = small.step(token, state)
        assert y.dtype is torch.float64
        torch.testing.assert_close(y, spelled_out(small).double().step(token, state)[0])


def test_a_tied_head_has_bytes_and_the_embedding_has_rows():
    model = language_model(tie_embeddings=True)
    before = copy.deepcopy(model.state_dict())
    small = quantize(model, 8, 32)
    assert isinstance(small.head, QuantizedLinear)
    assert torch.equal(small.encoder.weight, model.encoder.weight)
    assert model.head.weight is model.encoder.weight
    assert small.encoder.weight is not model.encoder.weight
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name])


def test_what_stays_as_it_is():
    model = language_model("mamba2")
    small = quantize(model, 8, exclude=["head", "blocks.*.mixer.in_proj"])
    assert type(small.head) is Linear
    kinds = {name: type(part) for name, part in small.named_modules()}
    assert kinds["blocks.1.mixer.in_proj"] is Linear
    assert kinds["blocks.1.mixer.out_proj"] is QuantizedLinear
    stays = [name for name, _ in small.named_parameters() if not name.endswith((".bias", ".like"))]
    for name in stays:
        assert torch.equal(small.get_parameter(name), model.get_parameter(name))
    assert any("A_log" in name for name in stays)


def test_sizes_and_errors():
    model = language_model("gla")
    for bits, smaller, largest in ((8, 3.3, 0.006), (4, 5.5, 0.1)):
        small = quantize(model, bits, 64)
        maps = {name: part for name, part in small.named_modules() if hasattr(part, "packed")}
        stored = sum(m.packed.nbytes + m.scales.nbytes for m in maps.values())
        assert 4 * sum(m.in_features * m.out_features for m in maps.values()) > smaller * stored
        rows = errors(model, small)
        assert [row.name for row in rows] == list(maps)
        assert all(0 < row.error < largest for row in rows)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_state_dict_goes_round(bits):
    small, other = quantize(language_model(), bits), quantize(language_model(), bits)
    for x in other.state_dict().values():
        x.zero_()
    other.load_state_dict(small.state_dict())
    tokens = torch.randint(40, (2, 5))
    with torch.no_grad():
        assert torch.equal(small(tokens)[0], other(tokens)[0])
    with pytest.raises(RuntimeError, match="packed"):
        language_model().load_state_dict(small.state_dict())


def test_other_modules():
    torch.manual_seed(0)
    rnn = linrnn.RNN("mingru", 32, 64, num_layers=2).eval()
    mixer = linrnn.mixers.load("gla")(64).eval()
    plain = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32))
    x = torch.randn(2, 7, 64)
    with torch.no_grad():
        for module, given in ((rnn, x[..., :32]), (mixer, x), (plain, x)):
            small = quantize(module)
            assert any(isinstance(part, QuantizedLinear) for part in small.modules())
            y, expected = small(given), module(given)
            y, expected = (z[0] if isinstance(z, tuple) else z for z in (y, expected))
            torch.testing.assert_close(y, expected, rtol=0, atol=0.05)
        assert isinstance(quantize(nn.Linear(64, 64)), QuantizedLinear)


def test_text_is_generated():
    small = quantize(language_model(), 4)
    tokens = list(linrnn.generation.generate(small, [1, 2, 3], 5, seed=0))
    assert len(tokens) == 5


@pytest.mark.unchecked
def test_wrong_arguments():
    with pytest.raises(ArgumentTypeError, match=r"quantize: model must be a torch.nn.Module"):
        quantize(3)
    with pytest.raises(ArgumentError, match=r"quantize: bits must be 8 or 4, got 2"):
        quantize(language_model(), 2)
    with pytest.raises(ArgumentError, match=r"quantize: model must have a linear map of 32 inputs"):
        quantize(nn.Linear(8, 8))


@pytest.mark.unchecked
def test_it_is_not_trained():
    loader = [(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.long))]
    with pytest.raises(ArgumentError, match=r"weights that can be trained, got 8 bits in blocks.0"):
        linrnn.fit(quantize(language_model()), loader, loss="cross_entropy", epochs=1)
