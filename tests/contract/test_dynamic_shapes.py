"""One graph for every batch and time: `RNN` and `SequenceModel`; test_ops.py has the ops."""

import pytest
import torch

import linrnn.ops
from linrnn import RNN, SequenceModel, mixers
from linrnn.errors import ArgumentError
from linrnn.nn import CausalConv
from linrnn.ops.conv.online_conv import NEAR
from linrnn.state import map_state
from linrnn.testing import BrokenPropertyError
from linrnn.testing._dynamic import check_dynamic
from linrnn.testing._examples import calls, ops

pytestmark = pytest.mark.unchecked  # tracers cannot look through the shape checker

SIZES = ((11, 13), (2, 70), (5, 7))
C = 6  # channels, which are no batch and no time


def randn(*shape, **kwargs):
    return torch.randn(*shape, **kwargs).requires_grad_()


def reset(batch, time):
    return torch.rand(batch, time) < 0.2


@pytest.mark.parametrize("op", [op for op in ops() if op in linrnn.ops.__all__])
def test_op_refuses_to_be_traced(op):
    call = next(calls(op))
    tensors = {n: x for n, x in call.arguments.items() if isinstance(x, torch.Tensor)}
    others = {n: x for n, x in call.arguments.items() if n not in tensors}
    rule = f"{op}: the call must not be recorded by torch.jit.trace, .*Use torch.export.export"
    with pytest.raises(ArgumentError, match=rule):
        torch.jit.trace(
            lambda *given: call.function(**dict(zip(tensors, given, strict=True)), **others),
            tuple(tensors.values()),
        )


@pytest.mark.parametrize("width", [4, 64])
def test_causal_convolution(width):
    conv = CausalConv(C, width, silu=True)
    calls = [
        {"x": randn(b, t, C), "past": randn(b, width - 1, C), "reset": reset(b, t)}
        for b, t in SIZES
    ]
    check_dynamic("CausalConv", conv, calls, "aot_eager")


OWN_STEPS = {mixers.load(name)._step: name for name in mixers.names()}.values()


@pytest.mark.parametrize("name", OWN_STEPS)
def test_a_step_is_one_graph(name):
    """One mixer of each that writes a step, at one size; the slow cases of a law have all sizes."""
    torch._dynamo.reset()
    mixer, x = mixers.build(name, C), torch.randn(2, C)
    state = mixer.init_state(2)
    step = torch.compile(mixer.step, backend="eager", fullgraph=True)
    y, last = step(x, state)
    expected, last_expected = mixer.step(x, state)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(last, last_expected)


@pytest.mark.parametrize(("name", "batch_first"), [("slru", True), ("lstm", False)])
def test_rnn(name, batch_first):
    """`RNN` with any mixer; mixers alone have a law for this."""
    rnn = RNN(name, C, 8, bidirectional=True, batch_first=batch_first, proj_size=3)
    calls = []
    for batch, time in SIZES:
        shape = (batch, time) if batch_first else (time, batch)
        state = map_state(torch.Tensor.detach, rnn(torch.randn(*shape, C))[1])
        calls.append({"input": randn(*shape, C), "hx": state})
    check_dynamic(f"RNN {name}", rnn, calls)


MODELS = {
    "glu": {"pool": "mean", "mixer": "slru"},
    "mlp": {"pool": "last", "block": "mlp", "conv_width": 4, "norm": "rms", "mixer": "gru"},
    "swiglu": {"pool": "none", "block": "swiglu", "norm": "rms", "d_ffn": 9, "mixer": "mingru"},
    "channel_mix": {"pool": "none", "block": "channel_mix", "norm": "layer", "mixer": "gru"},
    "geglu": {
        "pool": "none",
        "block": "geglu",
        "norm": "rms",
        "mixer": "rg_lru",
        "logit_soft_cap": 3.0,
    },
    "xlstm": {"pool": "none", "block": "xlstm", "norm": "layer", "mixer": "slstm"},
    "bare": {"block": "bare", "prenorm": False, "final_norm": True, "mixer": "mingru"},
    "bidirectional": {"pool": "last", "bidirectional": True, "mixer": "mingru"},
    "tokens": {"pool": "none", "encoder": "tokens", "tie_embeddings": True, "mixer": "mingru"},
    "pairs": {"pool": "mean", "documents": 2, "bidirectional": True, "mixer": "mingru"},
}


def model(name):
    options = MODELS[name]
    tokens = options.get("encoder") == "tokens"
    sizes = (9, 9) if tokens else (4, 3)
    return SequenceModel(*sizes, d_model=8, n_layers=1, **options)


def calls_of(net, name, *, state):
    calls = []
    for batch, time in SIZES:
        pairs = (2,) if "documents" in MODELS[name] else ()
        shape = (batch, *pairs, time)
        x = randn(*shape, 4)
        if MODELS[name].get("encoder") == "tokens":
            x = torch.randint(9, shape)
        call = {"x": x, "reset": torch.rand(shape) < 0.2}
        if state:
            call["state"] = map_state(torch.Tensor.detach, net(x)[1])
        else:
            call["lengths"] = torch.randint(1, time + 1, (batch, *pairs))
        calls.append(call)
    return calls


QUICK = ("mlp", "tokens", "pairs")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_sequence_model(name):
    net = model(name).eval()
    check_dynamic(f"SequenceModel {name}", net, calls_of(net, name, state=True))


@pytest.mark.parametrize("name", ["glu", "bidirectional"])
def test_sequence_model_of_padded_rows(name):
    net = model(name).eval()
    check_dynamic(f"SequenceModel {name}", net, calls_of(net, name, state=False), export=False)


def test_models_refuse_to_be_traced():
    x, rule = torch.randn(2, 5, 4), "must not be recorded by torch.jit.trace"
    for net in (RNN("lru", 4, 8), SequenceModel(4, 3), SequenceModel(4, 3, mixer="mingru")):
        with pytest.raises(ArgumentError, match=rule):
            torch.jit.trace(net, (x,))


#: Of each way in which a state goes through an export one: of keys that grow, complex, and rows.
EXPORTED = ("attention", "lru")


def exported_calls(net, width, x, state):
    """Whole sequences from their start, and ones that go on after another."""
    sizes = SIZES[:2]
    fresh = [{x: torch.randn(*size, width)} for size in sizes]
    with torch.no_grad():
        states = [map_state(torch.Tensor.detach, net(call[x])[1]) for call in fresh]
    return fresh, [{**call, state: h} for call, h in zip(fresh, states, strict=True)]


#: Where `RNN` has the past of a long filter among the parts of a state.
PAST_OF = {"hyena": 1, "sgconv": 0}


def one_piece(near, *far):
    """Past inputs as a graph keeps them; other calls have them in blocks."""
    blocks = [x[..., : NEAR << i, :] for i, x in enumerate(far)]
    return torch.cat([*reversed(blocks), near], -2)


def in_one_piece(tree, place=None):
    if isinstance(tree, dict) and tree.keys() == {"near", "far"}:
        return one_piece(tree["near"], *tree["far"])
    if isinstance(tree, dict):
        return {key: in_one_piece(x) for key, x in tree.items()}
    if place is not None:
        y, (h, parts) = tree
        return y, (h, (*parts[:place], one_piece(*parts[place:])))
    return type(tree)(map(in_one_piece, tree)) if isinstance(tree, (list, tuple)) else tree


@pytest.mark.parametrize("kind", ["RNN", "SequenceModel"])
@pytest.mark.parametrize(
    "name",
    [n if n in EXPORTED else pytest.param(n, marks=pytest.mark.slow) for n in mixers.names()],
)
def test_every_mixer_is_exported_for_every_size(name, kind):
    torch.manual_seed(0)
    if kind == "RNN":
        net = RNN(name, C, 8, batch_first=True).eval()
        every = exported_calls(net, C, "input", "hx")
    else:
        options = {"d_model": 8, "n_layers": 1, "pool": "none", "block": "bare", "norm": "none"}
        net = SequenceModel(4, 3, mixer=name, **options).eval()
        every = exported_calls(net, 4, "x", "state")
    place = PAST_OF.get(name) if kind == "RNN" else None
    net.register_forward_hook(lambda net, args, results: in_one_piece(results, place))
    for several in every:
        what = f"{kind} of {name}, {', '.join(several[0])}"
        check_dynamic(what, net, several, compiled=False)


@pytest.mark.parametrize(
    "name",
    [n if n == "attention" else pytest.param(n, marks=pytest.mark.slow) for n in mixers.names()],
)
def test_sequence_model_of_every_mixer_trains_in_one_graph(name):
    net = SequenceModel(4, 3, mixer=name, d_model=8, n_layers=2, block="mlp").train()
    calls = [{"x": randn(batch, time, 4)} for batch, time in SIZES]
    check_dynamic(f"SequenceModel of {name}", net, calls, "aot_eager", export=False)


def test_a_graph_of_one_size_is_noticed():
    calls = [{"x": randn(*size)} for size in SIZES]
    with pytest.raises(BrokenPropertyError, match="compiled once more"):
        check_dynamic("a loop", lambda x: sum(x.unbind(1)), calls, export=False)
    with pytest.raises(BrokenPropertyError, match="specialized"):
        check_dynamic("a number", lambda x: x * len(x), calls)


def test_other_numbers_in_a_graph_are_noticed():
    def differs(x):
        return x * (2 if torch.compiler.is_compiling() else 1)

    with pytest.raises(BrokenPropertyError, match="compiled"):
        check_dynamic("differs", differs, [{"x": randn(*s)} for s in SIZES], export=False)


def test_other_numbers_of_a_module_are_noticed():
    class Differs(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * (1.001 if torch.compiler.is_compiling() else 1)

    calls = [{"x": randn(*s, 4)} for s in SIZES]
    with pytest.raises(BrokenPropertyError, match=r"compiled.* of which a plain loop's own error"):
        check_dynamic("differs", Differs(4, 3), calls, export=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: mixers.build("lru", 4),
        lambda: SequenceModel(4, 2, mixer="lru", d_model=4, n_layers=2),
        lambda: torch.nn.Sequential(RNN("lru", 4, 4)),
        lambda: RNN("gru", 4, 4, bidirectional=True),
    ],
)
def test_a_script_is_refused_as_a_trace_is(make):
    rule = "must not be compiled by torch.jit.script, .*Use torch.export.export"
    with pytest.raises(ArgumentError, match=rule):
        torch.jit.script(make())
