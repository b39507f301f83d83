"""The benchmarks compute what they say: peers solve the recurrence, tables show the ratios."""

import importlib
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

from linrnn.testing import check_close, loop_scan

ROOT = Path(__file__).parents[2]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)


@pytest.fixture
def module(monkeypatch):
    """Import a file of benchmarks/ as its scripts do."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def expected(a, b, grad):
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    h = loop_scan(a, b)[0]
    return h.detach(), *torch.autograd.grad(h, (a, b), grad)


PEERS = (
    *("loop", "mambapy.pscan", "torch associative_scan", "jax associative_scan"),
    *("jax scan", "jax scan, time first", "philtorch", "philtorch, time last"),
)


def test_every_peer_is_tested(module):
    assert tuple(module("_peers").PEERS) == PEERS


@DTYPES
@pytest.mark.parametrize("shape", [(1, 64, 3), (2, 33, 4)], ids=str)
@pytest.mark.parametrize("name", PEERS)
def test_peer_solves_the_recurrence(module, name, shape, dtype):
    peer = module("_peers").PEERS[name]
    if peer.missing():
        pytest.skip(f"{peer.package} is not installed")
    a, b, grad = module("scan").inputs(shape, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = peer.prepare(a, b, grad)
        h, both = calls.to_torch(calls.forward()), calls.both()
    truth = expected(a, b, grad)
    check_close("forward", h, truth[0], roundings=64)
    for what, got, true in zip(("h", "grad a", "grad b"), both, truth, strict=True):
        check_close(what, calls.to_torch(got), true, roundings=64)


@DTYPES
@pytest.mark.parametrize("constant", [True, False])
def test_numpy_loop_is_the_definition(module, dtype, constant):
    a, b, grad = module("scan").inputs((1, 21, 3), dtype)
    a = a[0, 0] if constant else a
    h, grad_a, grad_b = expected(a, b, grad)
    got = module("_loop").loop_solution(a if constant else a[0], b[0], grad[0])
    check_close("h", got.h, h[0])
    check_close("grad a", got.grad_a, grad_a if constant else grad_a[0], roundings=16)
    check_close("grad b", got.grad_b, grad_b[0])


def test_ratios_and_marks_of_the_tables(module):
    scan, timing = module("scan"), module("_timing").Timing
    times = {
        scan.ADD: timing(0.010, 9),
        scan.ADD_OUT: timing(0.005, 9),
        scan.OURS: timing(0.014, 9),
        scan.OURS_CONSTANT: timing(0.008, 9),
        "loop": timing(0.056, 9),
        "jax scan": timing(0.140, 9),
        "mambapy.pscan": timing(5.0, 1, over=True),
    }
    cell = scan.Cell((8, 2048, 512), torch.float32, "forward", times)
    assert cell.best_peer() == "loop"
    (row,) = scan.add_table([cell])[2:]
    assert "| 1.40 | ≤ 1.5 | met |" in row
    (row,) = scan.peer_table([cell], "forward")[2:]
    assert "56.0 (4.0×)" in row
    assert "over 5 s (>357.1×)" in row
    assert row.endswith("| 4.0× | ≥ 5.0× | NOT met |")
    over = next(r for r in scan.csv_rows([cell]) if r[5] == "mambapy.pscan")
    assert over[6:9] == ["5000", 1, "over"]


def test_floor_of_small_calls_is_strict(module):
    scan, timing = module("scan"), module("_timing").Timing
    names = ("scan, forward + backward", "torch.mul, forward + backward", "scan of one step")
    times = dict.fromkeys((*names, "torch.mul and torch.add", "torch.addcmul"), timing(1e-6, 9))
    times["scan, forward + backward"] = timing(5e-6, 9)
    marks = [row.split(" | ")[-1] for row in scan.small_table(times)[2:]]
    assert marks == ["NOT met |", "met |", "met |"]


def test_slow_candidate_is_stopped_and_the_others_are_timed_in_turn(module, monkeypatch):
    timing, order = module("_timing"), []
    monkeypatch.setattr(timing, "SHORT_S", 0.0)

    def forever():
        while True:
            order.append("slow")

    candidates = {
        "a": timing.Candidate(lambda: order.append("a")),
        "slow": timing.Candidate(forever),
        "b": timing.Candidate(lambda: order.append("b")),
    }
    times = timing.in_turn(candidates, seconds=1.0, limit=0.05, max_calls=5)
    assert times["slow"].over
    assert times["slow"].text() == "over 0.05 s"
    assert times["a"].calls == times["b"].calls == 5
    fast = [name for name in order if name != "slow"]
    assert fast == ["a", "a", "b", "b"] + ["a", "b"] * 5  # two to estimate, then five rounds


@pytest.mark.parametrize("kept", [True, False])
def test_no_call_begins_by_giving_back_memory_that_is_kept(module, monkeypatch, kept):
    timing, order = module("_timing"), []
    monkeypatch.setattr(timing, "_kept", False)
    monkeypatch.setattr(timing.linrnn, "keep_memory", lambda: kept)  # not for all of these tests
    monkeypatch.setattr(timing, "return_free_memory", lambda: order.append("returned"))
    monkeypatch.setattr(timing, "SHORT_S", 0.0)  # a call is a measurement
    assert timing.keep_memory() is kept
    candidates = {"one": timing.Candidate(lambda: order.append("called"))}
    timing.in_turn(candidates, seconds=0.01, limit=1, max_calls=3)
    calls = order.count("called")
    assert calls > 3
    assert order == (["called"] if kept else ["returned", "called"]) * calls


@pytest.mark.slow
def test_missing_peer_is_a_failure_unless_allowed(module, monkeypatch, tmp_path, capsys):
    scan = module("scan")
    absent = module("_peers").Peer("no_such_package", None)
    monkeypatch.setattr(scan, "PEERS", {"absent": absent})
    monkeypatch.setattr(scan, "QUICK_SHAPES", ((1, 8, 2),))
    threads = str(torch.get_num_threads())
    quick = ["--quick", "--seconds", "0.01", "--out", str(tmp_path), "--threads", threads]
    assert scan.main(quick) == 1
    assert "peers not installed: absent" in capsys.readouterr().err
    assert scan.main([*quick, "--skip-missing"]) == 0
    assert "NOT INSTALLED" in (tmp_path / "scan-cpu.md").read_text(encoding="utf-8")


def test_error_tables_cover_every_size(module, tmp_path):
    errors = module("errors")
    rows = errors.measure(64, torch.float32, True, ["reference", "tree"])
    loop = [row for row in rows if row.backend == "loop"]
    assert all(m <= 1 for row in loop for m in row.multiples)
    table = errors.error_table(rows, ["h"])
    assert [line.split(" | ")[0] for line in table[2:]] == ["| reference", "| tree"]
    assert len(table[2].split(" | ")) == 4 + len(errors.SIZES)


def test_short_call_is_repeated_within_a_measurement(module):
    timing, calls = module("_timing"), []
    times = timing.in_turn(
        {"a": timing.Candidate(lambda: calls.append(1))}, seconds=0.01, limit=1.0, max_calls=3
    )
    assert times["a"].calls == 3
    assert len(calls) > 100


LAYERS = (
    *("linrnn mingru", "linrnn minlstm", "linrnn lru", "linrnn mamba", "linrnn rwkv4"),
    *("linrnn gru", "minGRU-pytorch"),
    *("nn.LSTM", "nn.GRU", "s5-pytorch", "mambapy", "mambapy, loop"),
    *("transformers Mamba", "transformers Mamba, mambapy"),
)


def test_every_layer_is_tested(module):
    assert tuple(module("_layers").LAYERS) == LAYERS


def test_the_products_of_a_layer_are_those_of_its_projections(module):
    layers = module("_layers")
    for name, widths in {"lru": {16, 32}, "mamba": {16, 32}, "gru": {16}, "rwkv4": {16}}.items():
        pairs = layers.own_products(layers.LAYERS[f"linrnn {name}"], 16, 2, 5)()
        assert {x.shape[-1] for x, _ in pairs} == widths
        assert all(x.shape[:2] == (2, 5) and w.ndim == 2 for x, w in pairs)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_reads_a_sequence_and_gives_gradients(module, name):
    layers = module("_layers")
    layer = layers.LAYERS[name]
    if layer.missing():
        pytest.skip(f"{layer.package} is not installed")
    grads = layers.training_step(layer, 16, 2, 5)()
    assert grads[0].shape == (2, 5, 16)
    assert all(g is not None and g.isfinite().all() for g in grads)


def test_streaming_steps_carry_their_states(module):
    calls = module("_layers").streaming_steps(16, 2)
    for name, call in calls.items():
        first, second = call(), call()
        assert first.numel() == second.numel() == 16, name
        assert not torch.equal(first, second), f"{name} forgets"


def test_rivals_are_judged_by_their_ratio(module):
    layers, timing = module("layers"), module("_timing").Timing
    everyone = {name: timing(0.010, 5) for name in LAYERS}
    everyone["nn.LSTM"] = timing(0.026, 5)
    lines = layers.rival_table({1024: everyone})
    row = next(line for line in lines if "mingru against nn.LSTM" in line)
    assert "2.6× (≥ 2.5: met)" in row
    row = next(line for line in lines if "mingru against nn.GRU" in line)
    assert "1.0× (≥ 8: NOT met)" in row


def test_half_precision_is_judged_by_products_and_by_float32(module):
    layers, timing = module("layers"), module("_timing").Timing
    slow = {"float32": 0.02, "bfloat16": 0.03, "products": 0.01}
    fast = {"float32": 0.02, "bfloat16": 0.015, "products": 0.01}
    times = {
        name: {kind: timing(t, 5) for kind, t in each.items()}
        for name, each in {"gru": slow, "lru": fast}.items()
    }
    (*_, over, faster), (*_, also_over, also_faster) = layers.half_rows(times)
    assert (over, faster) == ("3.00× (≤ 1.6: NOT met)", "0.67× (> 1: NOT met)")
    assert (also_over, also_faster) == ("1.50× (≤ 1.6: met)", "1.33× (> 1: met)")


def test_half_steps_are_inside_of_autocast_and_their_products_bfloat16(module):
    layers = module("_layers")
    layer = layers.HALF_LAYERS["gru"]
    exact, half = (layers.training_step(layer, 16, 2, 5, half=h)() for h in (False, True))
    assert not torch.equal(exact[0], half[0])
    assert all(g.dtype == torch.float32 for g in half)
    pairs = layers.own_products(layer, 16, 2, 5, dtype=torch.bfloat16, recurrent=True)()
    assert len(pairs) == 2
    assert {g.dtype for pair in pairs for g in pair} == {torch.bfloat16}


def test_splits_measure_what_a_lost_state_changes(module):
    splits = module("splits")
    gru = torch.nn.GRU(splits.D_MODEL, splits.D_MODEL, batch_first=True)
    x = torch.randn(1, 200, splits.D_MODEL)
    assert splits.difference(gru, x) < 1e-6
    assert splits.difference(lambda x, h: gru(x), x) > 1e-2
    assert sum(splits.cuts(200)) == 200
    assert splits.cuts(200)[0] == 1


def test_data_times_making_and_training(module, tmp_path):
    assert module("data").main(["--tasks", "adding", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "data.md").read_text()
    assert "| adding | lru, width 32, 2 layers | 200 | 50 |" in page


def drawn_at(picture):
    """Where the markers of a picture lie, its ticks among them."""
    found = re.findall(r'<use xlink:href="#m[^"]*" x="([-\d.]+)" y="([-\d.]+)"', picture)
    return [(float(x), float(y)) for x, y in found]


@pytest.mark.parametrize(
    ("script", "name"),
    [("curves", "scan-time"), ("errors", "scan-error"), ("learn_haul", "learn-haul")],
)
def test_a_committed_plot_shows_the_committed_numbers(module, monkeypatch, tmp_path, script, name):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(module("_plots"), "ASSETS", tmp_path)
    monkeypatch.setattr(sys, "argv", [script])
    assert module(script).main(["--redraw"]) == 0
    new, old = (
        drawn_at((folder / f"{name}.svg").read_text(encoding="utf-8"))
        for folder in (tmp_path, ROOT / "docs" / "assets")
    )
    assert len(new) > 100
    flat = [[number for point in points for number in point] for points in (new, old)]
    assert flat[0] == pytest.approx(flat[1], abs=0.5), (
        f"run: python benchmarks/{script}.py --redraw"
    )


def test_panels_that_are_compared_share_their_axis_and_backends_their_look(module, monkeypatch):
    pytest.importorskip("matplotlib")
    kept = {}
    monkeypatch.setattr(
        module("_plots"), "save", lambda made, axes, name, **_: kept.update({name: axes})
    )
    for script in ("curves", "errors"):
        module(script).main(["--redraw"])
    looks = []
    for axes in kept.values():
        assert axes[0].get_ylim() == axes[1].get_ylim()
        lines = {line.get_label().removeprefix("linrnn "): line for line in axes[0].lines}
        names = ("cpu", "tree", "reference", "loop")
        looks.append([(lines[n].get_color(), lines[n].get_marker()) for n in names])
    assert looks[0] == looks[1]
