"""The graph of a step, spread over time: steps written by hand, for they take no exporter."""

import numpy as np
import pytest

from linrnn.errors import LinrnnError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from linrnn.interop._onnx_time import over_time  # noqa: E402

B, T = 3, 7
RNG = np.random.default_rng(0)


def step_of(nodes, shapes, weights):
    """A model of one step from ``op inputs -> output`` lines; shapes are those behind the batch."""
    made = []
    for line, attributes in nodes.items():
        op, *inputs, _, output = line.split()
        made.append(onnx.helper.make_node(op, inputs, [output], **attributes))
    values = {
        name: onnx.helper.make_tensor_value_info(name, 1, ["batch", *shape])
        for name, shape in shapes.items()
    }
    inputs = [v for name, v in values.items() if name[0] in "xs"]
    outputs = [v for name, v in values.items() if name[0] in "yn"]
    held = [onnx.numpy_helper.from_array(w, name) for name, w in weights.items()]
    graph = onnx.helper.make_graph(made, "step", inputs, outputs, held)
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10
    )


def run(model, **fed):
    onnx.checker.check_model(model)
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=providers).run(
        None, fed
    )


def loops(model):
    return [node for node in model.graph.node if node.op_type == "Scan"]


def inside(loop):
    return [node.op_type for node in loop.attribute[0].g.node if node.op_type != "Identity"]


def draw(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


GATED = {
    "MatMul x v -> b": {},
    "Mul s0 a -> decayed": {},
    "Add decayed b -> n0": {},
    "MatMul n0 w -> read": {},
    "Add read s1 -> y": {},
    "Identity x -> n1": {},  # the input of the step before
}


@pytest.mark.parametrize("last", [False, True])
def test_weights_are_applied_to_all_steps_at_once(last):
    a, v, w = draw(4), draw(5, 4), draw(4, 5)
    shapes = {"x": [5], "s0": [4], "s1": [5], "y": [5], "n0": [4], "n1": [5]}
    model = over_time(step_of(GATED, shapes, {"a": a, "v": v, "w": w}), last=last)
    (loop,) = loops(model)
    assert inside(loop) == ["Mul", "Add"]
    x, h, before = draw(B, T, 5), draw(B, 4), draw(B, 5)
    y, end, seen = run(model, x=x, s0=h, s1=before)
    expected = []
    for t in range(T):
        h = h * a + x[:, t] @ v
        expected.append(h @ w + before)
        before = x[:, t]
    np.testing.assert_allclose(y, expected[-1] if last else np.stack(expected, 1), atol=1e-5)
    np.testing.assert_allclose(end, h, atol=1e-5)
    np.testing.assert_array_equal(seen, before)
    assert len(loop.output) == (1 if last else 2)  # the state at the end, and after each step


def test_an_answer_after_the_last_step_keeps_no_other():
    nodes = {"Add s0 x -> n0": {}, "MatMul n0 w -> y": {}}
    w = draw(5, 2)
    model = over_time(
        step_of(nodes, {"x": [5], "s0": [5], "y": [2], "n0": [5]}, {"w": w}), last=True
    )
    (loop,) = loops(model)
    assert len(loop.output) == 1
    x, h = draw(B, T, 5), draw(B, 5)
    y, end = run(model, x=x, s0=h)
    np.testing.assert_allclose(end, h + x.sum(1), atol=1e-5)
    np.testing.assert_allclose(y, (h + x.sum(1)) @ w, atol=1e-4)


def test_a_matrix_memory_is_written_and_read_inside():
    nodes = {
        "MatMul x wk -> k": {},
        "MatMul x wv -> v": {},
        "Unsqueeze k last -> column": {},
        "Unsqueeze v first -> row": {},
        "Mul column row -> outer": {},
        "Add s0 outer -> n0": {},
        "Mul n0 column -> weighed": {},
        "ReduceSum weighed first -> y": {"keepdims": 0},
    }
    shapes = {"x": [5], "s0": [8, 6], "y": [6], "n0": [8, 6]}
    weights = {"wk": draw(5, 8), "wv": draw(5, 6), "last": np.array([2]), "first": np.array([1])}
    model = over_time(step_of(nodes, shapes, weights), last=False)
    (loop,) = loops(model)
    assert {"Mul", "Add", "ReduceSum"} <= set(inside(loop))
    assert "MatMul" not in inside(loop)
    sizes = [
        [d.dim_value for d in v.type.tensor_type.shape.dim[1:]]
        for v in (*loop.attribute[0].g.input, *loop.attribute[0].g.output)
    ]
    assert sizes.count([8, 6]) == 2  # the state before and after, alone
    x, memory = draw(B, T, 5), draw(B, 8, 6)
    y, end = run(model, x=x, s0=memory)
    for t in range(T):
        k, v = x[:, t] @ weights["wk"], x[:, t] @ weights["wv"]
        memory = memory + k[:, :, None] * v[:, None]
        np.testing.assert_allclose(y[:, t], (memory * k[:, :, None]).sum(1), atol=1e-4)
    np.testing.assert_allclose(end, memory, atol=1e-5)


def test_layers_are_a_loop_each_and_states_that_need_one_another_share_one():
    nodes = {
        "Tanh s1 -> t1": {},
        "Add s0 t1 -> a0": {},
        "Add a0 x -> n0": {},
        "Add s1 n0 -> n1": {},
        "Tanh n1 -> between": {},
        "Mul s2 c -> d2": {},
        "Add d2 between -> n2": {},
        "Identity n2 -> y": {},
    }
    shapes = {n: [4] for n in ("x", "s0", "s1", "s2", "y", "n0", "n1", "n2")}
    model = over_time(step_of(nodes, shapes, {"c": np.float32([0.5] * 4)}), last=False)
    assert len(loops(model)) == 2
    x, a, b, c = draw(B, T, 4), draw(B, 4), draw(B, 4), draw(B, 4)
    y, *ends = run(model, x=x, s0=a, s1=b, s2=c)
    for t in range(T):
        a = a + np.tanh(b) + x[:, t]
        b = b + a
        c = 0.5 * c + np.tanh(b)
        np.testing.assert_allclose(y[:, t], c, atol=1e-4)
    for got, expected in zip(ends, (a, b, c), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_a_state_that_counts_needs_no_input():
    nodes = {"Add s0 one -> n0": {}, "Mul x n0 -> y": {}}
    shapes = {n: [1] for n in ("x", "s0", "y", "n0")}
    model = over_time(step_of(nodes, shapes, {"one": np.ones(1, np.float32)}), last=False)
    x = draw(B, T, 1)
    y, end = run(model, x=x, s0=np.zeros((B, 1), np.float32))
    np.testing.assert_allclose(y, x * np.arange(1, T + 1)[:, None], rtol=1e-5)
    assert (end == T).all()


def test_what_has_its_batch_elsewhere_cannot_be_handed_over():
    nodes = {
        "Transpose x -> columns": {"perm": [1, 0]},
        "MatMul w columns -> mixed": {},  # weights from the left: no batch in front
        "Transpose s0 -> turned": {"perm": [1, 0]},
        "Add turned mixed -> sum": {},
        "Transpose sum -> n0": {"perm": [1, 0]},
        "Identity n0 -> y": {},
    }
    model = step_of(nodes, {n: [4] for n in ("x", "s0", "y", "n0")}, {"w": draw(4, 4)})
    with pytest.raises(LinrnnError, match="must have the batch as its first axis"):
        over_time(model, last=False)


def test_sizes_are_asked_for_inside_and_outside():
    nodes = {
        "Shape x -> rows": {"start": 0, "end": 1},
        "Concat rows four -> size": {"axis": 0},
        "Expand one size -> ones": {},
        "Mul s0 ones -> kept": {},
        "Add kept x -> n0": {},
        "Add n0 ones -> y": {},
    }
    shapes = {n: [4] for n in ("x", "s0", "y", "n0")}
    weights = {"four": np.array([4]), "one": np.ones(1, np.float32)}
    model = over_time(step_of(nodes, shapes, weights), last=False)
    x, h = draw(B, T, 4), draw(B, 4)
    y, end = run(model, x=x, s0=h)
    np.testing.assert_allclose(y, h[:, None] + x.cumsum(1) + 1, atol=1e-5)
    np.testing.assert_allclose(end, h + x.sum(1), atol=1e-5)
