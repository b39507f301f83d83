"""An exported step or sequence gives in onnxruntime what the model gives in PyTorch."""

import copy
import json
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch

from linrnn import SequenceModel, mixers
from linrnn.errors import ArgumentError, DataError, DTypeError
from linrnn.quantization import quantize
from linrnn.state import flatten
from linrnn.streaming import read

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

from linrnn.interop._onnx_proto import to_proto  # noqa: E402
from linrnn.interop._real import real_graph  # noqa: E402
from linrnn.interop.onnx import (  # noqa: E402
    export_sequence,
    export_step,
    initial_state,
    metadata,
    step_graph,
)

pytestmark = pytest.mark.unchecked  # an open batch is traced as a symbol, which is no int

D, BATCH = 6, 2
CLOSE = 1e-5  # float32, outputs near 1, the same operations in another order
LONG = 3 * CLOSE  # after a thousand steps
FEW = 16  # times the error of float32 against float64
SILENT = 3  # steps of zeros before the others: states may stay at 0, which is how they start
ROOT = Path(__file__).parents[3]
GROWING = {name for name in mixers.names() if "constant_memory" in mixers.load(name).declared}


def bounded(name):
    """Options that give a mixer a state of fixed size, as the page's table has them; or None."""
    for option in sorted({"window", "chunk"} & {*signature(mixers.load(name)).parameters}):
        if "constant_memory" not in mixers.build(name, D, {option: 4}).declared:
            return {option: 4}
    return None


OPTIONS = {name: options for name in GROWING if (options := bounded(name))}
VARIANTS = {
    "selective_lru normalised": ("selective_lru", {"gate": "normalised", "learn_initial": True}),
    "h3 heads": ("h3", {"d_head": 2}),
    "s5 real pairs": ("s5", {"conj_sym": False}),
    "s4d real": ("s4d", {"init": "real", "project": True}),
    "mamba zoh": ("mamba", {"b_disc": "zoh"}),
    "lru naive": ("lru", {"parametrisation": "naive", "form": "real"}),
    "gru before": ("gru", {"reset_gate": "before"}),
    "lstm variants": ("lstm", {"peepholes": True, "coupled": True}),
    "lstm ur": ("lstm", {"gates": "ur", "learn_initial": True}),
}
STACKS = {
    "glu": {"mixer": "lru", "pool": "mean"},
    "mlp": {"mixer": "mingru", "block": "mlp", "conv_width": 3, "norm": "rms", "pool": "none"},
    "swiglu": {"mixer": "mingru", "block": "swiglu", "d_ffn": 9, "logit_soft_cap": 0.5},
    "tiers": {"mixer": "s4d", "tiers": (2, 2), "block": "glu_mlp", "norm": "layer", "pool": "none"},
    "channel_mix": {"mixer": "rwkv4", "block": "channel_mix", "norm": "layer", "pool": "last"},
    "rwkv7 after the first": {
        **{"mixer": "rwkv7", "block": "relu_mix", "norm": "layer", "pool": "none"},
        **{"encoder_norm": True, "mixer_options": {"n_heads": 2, "value_rank": 3}, "n_layers": 3},
    },
    "hgrn with bounds": {"mixer": "hgrn,hgrn2", "norm": "layer", "pool": "none", "n_layers": 4},
    "griffin": {
        **{"mixer": "rg_lru,attention", "block": "geglu", "norm": "rms", "pool": "none"},
        **{
            "mixer_options": {"window": 4, "d_rotary": 4},
            "encoder_scale": 2.5,
            "logit_soft_cap": 3.0,
        },
    },
}

# An export takes two seconds, however little is in it. Of mixers that the quick tests export, their
# other options are left to the slow ones.
RARE = ("lru naive", "s5 real pairs", "s4d real", "mamba zoh", "lstm ur", "gru before", "h3 heads")
NAMES = [*sorted({*mixers.names()} - (GROWING - {*OPTIONS})), *VARIANTS, *STACKS]
EACH = [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in NAMES]
QUICK = ("aft", "lru", "mamba")
SOME = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]


def built(name):
    """A mixer with a state of fixed size, a variant of one, or a model around some."""
    torch.manual_seed(0)
    if name in STACKS:
        return SequenceModel(D, 3, d_model=D, **{"n_layers": 2} | STACKS[name]).eval()
    mixer, options = VARIANTS.get(name, (name, OPTIONS.get(name)))
    options = {**mixers.load(mixer).in_laws, **(options or {})}
    return mixers.build(mixer, D, options).eval()


def check_close(got, expected, own_error=0.0):
    """Within `LONG` of the largest number, for an untrained linear RNN may grow.

    Or within a few times the error of the steps themselves: those of a block recurrent transformer
    are 5 to 10 times as far from float64 after 900 steps as before.
    """
    scale = max(1.0, np.abs(expected.numpy()).max(initial=0))
    atol = max(LONG * scale, FEW * own_error)
    np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=atol)


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EACH)
def test_the_exported_function_is_the_step(name):
    model = built(name)
    graph, (_, *parts) = step_graph(model, None)
    operators = {str(n.target) for n in graph.graph.nodes if n.op == "call_function"}
    assert not any(o.startswith("linrnn") for o in operators)
    assert not any(h.is_complex() for h in [*parts, *graph.buffers()])
    for batch in (1, 3):
        expected = model.init_state(batch)
        state = list(flatten(expected).values())
        for _ in range(20):
            x = torch.randn(batch, D)
            with torch.no_grad():
                y, expected = model.step(x, expected)
                got, *state = graph(x, *state)
            torch.testing.assert_close(got, y, rtol=0, atol=CLOSE)
            for h, part in zip(flatten(expected).values(), state, strict=True):
                torch.testing.assert_close(part, h, rtol=0, atol=10 * CLOSE)  # sums are larger


@pytest.mark.parametrize("name", SOME)
def test_a_thousand_steps_in_onnxruntime_are_those_of_pytorch(name, tmp_path):
    model, path = built(name), tmp_path / "step.onnx"
    export_step(model, path)
    graph, record, double = session(path), metadata(path), copy.deepcopy(model).double()
    for batch, steps in ((BATCH, 1000), (1, 20)):
        state, fed = model.init_state(batch), initial_state(record, batch)
        exact, own_error = double.init_state(batch), 0.0
        for h, start in zip(flatten(state).values(), fed.values(), strict=True):
            assert np.array_equal(h.detach().numpy(), start)
        for t in range(steps):
            x = torch.randn(batch, D) * (t >= SILENT)
            with torch.no_grad():
                y, state = model.step(x, state)
                z, exact = double.step(x.double(), exact)
            parts, truth = ([u, *flatten(h).values()] for u, h in ((y, state), (z, exact)))
            errors = ((a - b).abs().max().item() for a, b in zip(parts, truth, strict=True))
            own_error = max(own_error, *errors)
            got = graph.run(None, {"x": x.numpy(), **fed})
            fed = dict(zip(fed, got[1:], strict=True))
            for h, part in zip(parts, got, strict=True):
                check_close(part, h, own_error)


@pytest.mark.parametrize("name", SOME)
def test_a_sequence_in_onnxruntime_is_that_of_pytorch(name, tmp_path):
    model, path = built(name), tmp_path / "sequence.onnx"
    export_sequence(model, path)
    graph, record = session(path), metadata(path)
    for batch, time in ((3, 19), (1, 70), (2, 1)):
        x, fed = torch.randn(batch, time, D), initial_state(record, batch)
        with torch.no_grad():
            y, state = model(x, model.init_state(batch))
        expected = [y, *(h for h in flatten(state).values())]
        whole = graph.run(None, {"x": x.numpy(), **fed})
        parts, after = [], list(fed.values())
        for piece in x.split(max(1, time // 2), 1):  # going on from the state that came back
            start = dict(zip(fed, after, strict=True))
            answer, *after = graph.run(None, {"x": piece.numpy(), **start})
            parts.append(answer)
        pooled = answer.ndim == 2
        joined = [answer if pooled else np.concatenate(parts, 1), *after]
        for got in (whole, joined):
            for h, part in zip(expected, got, strict=True):
                assert h.shape == part.shape
                scale = max(1.0, h.abs().max().item() if h.numel() else 1.0)
                np.testing.assert_allclose(part, h.numpy(), rtol=0, atol=CLOSE * scale)


class Neighbours(torch.nn.Module):
    """Sums and products with neighbours of 0 and 1, and functions that are precise near 0."""

    def forward(self, x):
        sums = [x + 1.5e-38, 2e-9 + x, x - 3e-9, x + 0.0]
        products = [x * (1 + 3e-6), (1 - 4e-6) * x, x / (1 + 5e-6), x * 1.0]
        return torch.stack([*sums, *products, torch.log1p(x), torch.expm1(x)], 1)


def test_numbers_near_0_and_1_are_not_taken_for_them(tmp_path):
    x = torch.logspace(-30, -0.1, 300)
    x = torch.cat([torch.zeros(1), x, -x, torch.tensor([3.0, 20.0, 80.0])])
    program = torch.export.export(Neighbours(), (x,), strict=False)
    graph = real_graph(program.run_decompositions())
    record = {"input": {"name": "x"}, "times": None, "states": [], "output": {"name": "y"}}
    proto = to_proto(graph, (x,), record, opset=20, open_batch=False)
    (tmp_path / "some.onnx").write_bytes(proto.SerializeToString())
    (got,) = session(tmp_path / "some.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), Neighbours()(x), rtol=5e-7, atol=1e-45)


TIMED = [name for name in NAMES if name in mixers.names() and mixers.load(name).timed]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TIMED)
def test_the_exported_function_reads_times_as_the_step_does(name):
    model = built(name)
    graph, _ = step_graph(model, None, times=True)
    expected = model.init_state(3)
    state = list(flatten(expected).values())
    for _ in range(9):
        x, dt = torch.randn(3, D), 0.1 + 2 * torch.rand(3)
        with torch.no_grad():
            y, expected = model.step(x, expected, dt=dt)
            got, *state = graph(x, dt, *state)
        torch.testing.assert_close(got, y, rtol=0, atol=CLOSE)


@pytest.mark.parametrize(
    "name", [n if n == "lru" else pytest.param(n, marks=pytest.mark.slow) for n in TIMED]
)
def test_a_sequence_with_times_in_onnxruntime_is_that_of_pytorch(name, tmp_path):
    model, path = built(name), tmp_path / "sequence.onnx"
    export_sequence(model, path, times=True)
    graph, record = session(path), metadata(path)
    assert record["times"] == {"name": "dt", "shape": ["batch", "time"], "dtype": "float32"}
    x, dt = torch.randn(3, 19, D), 0.1 + 2 * torch.rand(3, 19)
    with torch.no_grad():
        y, _ = model(x, dt=dt)
    fed = initial_state(record, 3)
    got, *state = graph.run(None, {"x": x[:, :7].numpy(), "dt": dt[:, :7].numpy(), **fed})
    fed = dict(zip(fed, state, strict=True))
    more, *_ = graph.run(None, {"x": x[:, 7:].numpy(), "dt": dt[:, 7:].numpy(), **fed})
    check_close(np.concatenate([got, more], 1), y)


def test_times_are_refused_where_no_layer_reads_them(tmp_path):
    with pytest.raises(ArgumentError, match="dt must be None, for no layer of this model knows"):
        export_step(built("gru"), tmp_path / "step.onnx", times=True)


@pytest.mark.parametrize("opset", [18, pytest.param(23, marks=pytest.mark.slow)])
def test_a_file_has_the_operators_one_asks_for(opset, tmp_path):
    import onnx

    model, path = built("lru"), tmp_path / "sequence.onnx"
    export_sequence(model, path, opset=opset)
    assert [o.version for o in onnx.load(path).opset_import if o.domain == ""] == [opset]
    x = torch.randn(2, 9, D)
    got = session(path).run(None, {"x": x.numpy(), **initial_state(metadata(path), 2)})[0]
    with torch.no_grad():
        check_close(got, model(x)[0])


def test_a_batch_can_be_fixed(tmp_path):
    path = tmp_path / "step.onnx"
    export_step(built("lru"), path, batch_size=3)
    record, graph = metadata(path), session(path)
    assert record["input"]["shape"] == [3, D]
    assert [i.shape for i in graph.get_inputs()] == [
        p["shape"] for p in [record["input"], *record["states"]]
    ]
    graph.run(None, {"x": np.zeros((3, D), np.float32), **initial_state(record)})


def test_a_model_of_text_reads_a_whole_one(tmp_path):
    torch.manual_seed(0)
    model = SequenceModel(
        11, 5, mixer="mingru", d_model=D, n_layers=2, norm="layer", encoder="tokens"
    )
    path = tmp_path / "sequence.onnx"
    export_sequence(model.eval(), path)
    record = metadata(path)
    assert record["input"]["shape"] == ["batch", "time"]
    assert record["output"]["shape"] == ["batch", 5]  # one answer: the model has a pooling
    tokens = torch.randint(11, (3, 17))
    got = session(path).run(None, {"token": tokens.numpy(), **initial_state(record, 3)})[0]
    with torch.no_grad():
        check_close(got, model(tokens)[0])


def test_a_model_of_text_and_what_its_file_says(tmp_path):
    torch.manual_seed(0)
    model = SequenceModel(11, 11, mixer="s5", d_model=D, n_layers=1, pool="none", encoder="tokens")
    path = tmp_path / "step.onnx"
    export_step(model.eval(), path, tokenizer={"kind": "byte"})
    record, graph = metadata(path), session(path)
    assert record["input"] == {
        "name": "token",
        "shape": ["batch"],
        "dtype": "int64",
        "vocabulary": 11,
    }
    assert record["output"] == {"name": "y", "shape": ["batch", 11], "dtype": "float32"}
    assert record["tokenizer"] == {"kind": "byte"}
    (part,) = record["states"]
    assert (part["name"], part["next"]) == ("state.layers.0", "next.layers.0")
    assert part["complex"]
    assert part["initial"] == 0
    assert [i.name for i in graph.get_inputs()] == ["token", "state.layers.0"]
    assert [o.name for o in graph.get_outputs()] == ["y", "next.layers.0"]
    fed, tokens = initial_state(record), torch.randint(11, (1, 20))
    expected = read(model, tokens, model.init_state(1))[0][0]
    for token, y in zip(tokens[0], expected, strict=True):
        got, fed["state.layers.0"] = graph.run(None, {"token": token[None].numpy(), **fed})
        np.testing.assert_allclose(got[0], y.numpy(), rtol=0, atol=CLOSE)
    check_example(path, tokens[0].tolist(), expected)


def check_example(path, tokens, expected):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "onnx_stream.py", path],
        input="".join(f"{token}\n" for token in tokens),
        capture_output=True,
        text=True,
        check=True,
    )
    got = np.array([line.split() for line in done.stdout.splitlines()], float)
    np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=CLOSE)


def test_the_example_needs_onnxruntime_and_numpy_alone(python):
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("example", {str(ROOT / "examples/onnx_stream.py")!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
result = [m for m in ("torch", "linrnn", "onnx", "onnxscript") if m in sys.modules]
"""
    assert python(code) == []


def test_what_cannot_be_exported_is_refused(tmp_path):
    path = tmp_path / "step.onnx"
    with pytest.raises(ArgumentError, match="state of fixed size, got Attention"):
        export_step(mixers.build("attention", D), path)
    with pytest.raises(ArgumentError, match="evaluation mode"):
        export_step(SequenceModel(1, 1, d_model=4, n_layers=1), path)
    with pytest.raises(ArgumentError, match=r"got Attention: .*\. Give it a window\.$"):
        export_sequence(mixers.build("attention", D), path)
    for export in (export_step, export_sequence):
        with pytest.raises(ArgumentError, match="opset must be in 18 to 23, got 17"):
            export(mixers.build("lru", D), path, opset=17)
        for bits in (8, 4):
            with pytest.raises(ArgumentError, match="weights must be floating-point numbers"):
                export(quantize(SequenceModel(D, 2, d_model=32, n_layers=1).eval(), bits), path)
    assert not path.exists()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_file_is_of_a_dtype_that_onnxruntime_computes_with(dtype, tmp_path):
    model = SequenceModel(D, 2, d_model=4, n_layers=1, mixer="lru").eval().to(dtype)
    for export in (export_step, export_sequence):
        path = tmp_path / f"{export.__name__}.onnx"
        if dtype == torch.float16:
            export(model, path)
            onnxruntime.InferenceSession(path)
            continue
        with pytest.raises(DTypeError, match=f"operators of other dtypes, got {dtype} of"):
            export(model, path)
        assert not path.exists()


def test_a_file_without_metadata_is_refused(tmp_path):
    import onnx

    with pytest.raises(DataError, match="must be an ONNX model"):
        metadata(tmp_path / "nothing.onnx")
    (tmp_path / "text.onnx").write_text(json.dumps({"a": 1}))
    with pytest.raises(DataError, match="must be an ONNX model"):
        metadata(tmp_path / "text.onnx")
    graph = onnx.helper.make_graph([], "empty", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    with pytest.raises(DataError, match="must hold the metadata 'linrnn', got"):
        metadata(tmp_path / "other.onnx")
