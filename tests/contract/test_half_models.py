"""A model in half precision is the model: what every step repeats is not rounded."""

import copy

import pytest
import torch

from linrnn import RNN, SequenceModel, mixers

WIDTH = 16
#: Of the norm of the outputs, over 512 steps (128 where steps are sequential). The largest measured
#: was 0.0141 (ecoformer, whose codes are signs), others at most 0.0079; with all parameters rounded
#: nn_rnn had 0.70, dlr 0.47, s4d 0.26, dss 0.23, lru 0.07, s4 0.06 (2026-11-27, AVX-512).
ALLOWED = 0.03


def steps(name):
    return 512 if mixers.load(name).cost == "parallel" else 128


@pytest.mark.parametrize("name", mixers.names())
def test_a_layer_in_bfloat16_gives_nearly_the_same(name):
    torch.manual_seed(0)
    layer = mixers.build(name, WIDTH).eval()
    half = copy.deepcopy(layer).to(torch.bfloat16)
    x = torch.randn(2, steps(name), WIDTH).bfloat16()
    with torch.no_grad():
        expected, outputs = layer(x.float())[0], half(x)[0]
    assert outputs.dtype == torch.bfloat16
    assert (outputs.float() - expected).norm() <= ALLOWED * expected.norm()


KEEPING = [name for name in mixers.names() if mixers.load(name).single_precision]


def kept(layer):
    own = {name: layer._parameters.get(name) for name in layer.single_precision}
    return {name: p for name, p in own.items() if p is not None}


@pytest.mark.parametrize("name", KEEPING)
def test_single_precision_stays_through_every_conversion(name):
    layer = mixers.build(name, WIDTH)
    numbers = {key: p.detach().clone() for key, p in kept(layer).items()}
    assert numbers
    for convert in (
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.to("cpu", torch.float16),
    ):
        half = convert(copy.deepcopy(layer))
        assert {p.dtype for p in kept(half).values()} == {torch.float32}
        for key, value in numbers.items():
            assert torch.equal(half.get_parameter(key), value)
        assert any(p.dtype != torch.float32 for p in half.parameters()) or name in ALONE
    double = copy.deepcopy(layer).bfloat16().double()
    assert {p.dtype for p in double.parameters()} == {torch.float64}
    made = mixers.build(name, WIDTH, dtype=torch.bfloat16)
    assert {p.dtype for p in kept(made).values()} == {torch.float32}


#: Whose parameters are all kept.
ALONE: set[str] = set()


@pytest.mark.parametrize("name", KEEPING)
def test_a_half_layer_trains_and_its_state_dict_comes_back(name):
    torch.manual_seed(0)
    half = mixers.build(name, WIDTH, dtype=torch.bfloat16)
    x = torch.randn(2, 9, WIDTH, dtype=torch.bfloat16)
    y, state = half(x)
    y.float().square().mean().backward()
    gradients = {key: p.grad for key, p in half.named_parameters() if p.grad is not None}
    assert gradients
    assert all(g.isfinite().all() for g in gradients.values())
    half.step(x[:, 0], state)
    other = mixers.build(name, WIDTH, dtype=torch.bfloat16)
    other.load_state_dict(half.state_dict())
    with torch.no_grad():
        assert torch.equal(other(x)[0], half(x)[0])
    assert {p.dtype for p in kept(half.to("meta")).values()} == {torch.float32}


@pytest.mark.parametrize("name", ["lru", "s4d", "mamba", "gru"])
def test_whole_models_convert_and_read_their_dtype(name):
    x = torch.randn(2, 9, WIDTH).bfloat16()
    model = SequenceModel(WIDTH, 3, mixer=name, d_model=WIDTH, n_layers=2).bfloat16()
    assert model(x)[0].dtype == torch.bfloat16
    rnn = RNN(name, WIDTH, WIDTH, 2, batch_first=True).bfloat16()
    assert rnn(x)[0].dtype == torch.bfloat16


def test_a_gradient_goes_along_with_its_parameter():
    layer = mixers.LRU(WIDTH)
    layer(torch.randn(2, 9, WIDTH))[0].square().sum().backward()
    before = layer.nu_log.grad.clone()
    layer.bfloat16()
    assert torch.equal(layer.nu_log.grad, before)
    assert layer.C.grad.dtype == torch.bfloat16
