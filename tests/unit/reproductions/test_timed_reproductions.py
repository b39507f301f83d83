"""Reproductions that measure time: ratios from a clock we turn, published numbers, real calls."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from linrnn.compute.backend import requested
from linrnn.errors import UnknownNameError
from linrnn.reproductions import Setting, load
from linrnn.reproductions import input_gated_lru_speed as gated
from linrnn.reproductions import lru_table_4 as table_4
from linrnn.reproductions import minrnn_runtime as runtime
from linrnn.reproductions._page.report import publish
from linrnn.reproductions._page.runs import SECONDS, Runs
from linrnn.reproductions._runs import layers, peak, timing
from linrnn.reproductions._runs.timing import Timing, Turns, over_lengths, ratio

CPU = torch.device("cpu")
QUICK = {"rounds": 3, "seconds": 0.0, "shortest": 0.0, "pause": 0.0}


class Hands:
    """A clock that moves only when something that takes time is called."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def taking(self, name, *seconds):
        """A call that takes these seconds in turn, the last of them ever after."""
        left = list(seconds)

        def call():
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    """Pages about numbers from a GPU, read as on a machine without one."""
    monkeypatch.setattr(timing, "device", lambda: torch.device("cpu"))


@pytest.fixture
def hands():
    return Hands()


def turns(hands, **options):
    return Turns(**{**QUICK, "seconds": 100.0, "limit": 50.0, "clock": hands, **options})


def cells(findings, title):
    """The rows of the table whose title begins so, by their first cell."""
    table = next(t for t in findings.tables if t.title.startswith(title))
    assert all(len(row) == len(table.head) for row in table.rows)
    return {row[0]: list(row[1:]) for row in table.rows}


def test_warm_up_does_not_count_and_the_median_is_of_the_rounds(hands):
    found = turns(hands).measure({"a": hands.taking("a", 40.0, 1.0, 2.0, 9.0, 4.0)})["a"]
    assert found.seconds == (2.0, 9.0, 4.0)
    assert found.median == 4.0
    assert found.milliseconds() == "4000 (2000 to 9000)"
    assert found.rate() == "0.250 (0.111 to 0.500)"


def test_contenders_take_turns(hands):
    turns(hands).measure({"a": hands.taking("a", 1.0), "b": hands.taking("b", 1.0)})
    assert hands.calls == ["a", "a", "b", "b", *"ab" * 3]


def test_short_calls_are_repeated_and_counted_once(hands):
    found = turns(hands, shortest=1.0).measure({"a": hands.taking("a", 0.25)})["a"]
    assert found.seconds == (0.25,) * 3
    assert len(hands.calls) == 2 + 3 * 4


def test_a_contender_over_the_limit_has_one_call_and_is_not_asked_for_more(hands):
    def build(name, length):
        return hands.taking(f"{name}{length}", length * {"slow": 10.0, "fast": 1.0}[name])

    found = over_lengths(turns(hands), ["slow", "fast"], (4, 8, 16), build, lambda line: None)
    assert found[4]["slow"].seconds == (40.0,) * 3
    assert found[8]["slow"].seconds == (80.0,)
    assert found[8]["slow"].milliseconds() == "80000 (one call)"
    assert found[16]["slow"].milliseconds() == "over 50 s before"
    assert found[16]["fast"].seconds == (16.0,) * 3
    assert "slow16" not in hands.calls


def test_slow_ones_have_fewer_rounds(hands):
    found = turns(hands, rounds=9, seconds=10.0).measure(
        {"slow": hands.taking("slow", 4.0), "mid": hands.taking("mid", 1.5)}
    )
    assert (len(found["slow"].seconds), len(found["mid"].seconds)) == (5, 6)


def test_no_memory_is_an_entry_and_not_an_end(hands):
    def full():
        raise torch.OutOfMemoryError("no")

    found = turns(hands).measure({"full": full, "fine": hands.taking("fine", 1.0)})
    assert list(found) == ["full", "fine"]
    assert found["full"].rate() == "out of memory"
    assert math.isnan(ratio(found["full"], found["fine"]))


def test_ratio_is_of_neighbours_in_time():
    """A machine that slows down half-way changes times, not the ratio."""
    assert ratio(Timing((3.0, 3.0, 9.0, 9.0)), Timing((1.0, 1.0, 3.0, 3.0))) == 3.0
    assert ratio(Timing((8.0,)), Timing((2.0, 5.0))) == 4.0


def test_rounds_of_a_clock_take_the_place_of_all_older_ones(tmp_path):
    """Fewer rounds leave none of an older command, nor of what could not be timed again."""

    def timed(seconds, scale, **rounds):
        timings = {name: Timing((seconds,) * n) for name, n in rounds.items()}
        page, runs = tmp_path / "report.md", tmp_path / "runs.csv"
        page.write_text("")
        runs.write_bytes(Runs(tuple(timing.rounds({"T = 4": timings}, scale))).csv())
        publish([page, runs], tmp_path / "results" / f"speed-{scale}")

    timed(3.0, "paper", a=2)
    timed(1.0, "cpu", a=5, b=5)
    timed(2.0, "cpu", a=3)
    path = tmp_path / "results" / "runs" / "speed.csv"
    small, large = (Runs.read(path, scale).part("T = 4") for scale in ("cpu", "paper"))
    assert small.values("a", SECONDS) == dict.fromkeys(range(3), 2.0)
    assert not small.has("b")
    assert large.values("a", SECONDS) == dict.fromkeys(range(2), 3.0)


def test_published_ratios_are_those_the_paper_prints():
    """8x, 1.9x, 29x, 11.4x, 7.4x and 17x, as far as table 4's own digits go."""
    printed = [float(text.rstrip("×")) for text in table_4.PRINTED]
    found = [table_4.published_ratio("LRU", task) for task in table_4.WORKLOADS]
    assert found == pytest.approx(printed, rel=0.02)


def slowed(part, row):
    """Changes the runs of a row as if each round had taken a hundred times as long."""

    def change(run):
        if (run.part, run.row) != (part, row):
            return run
        return replace(run, measures={SECONDS: 100 * run.measures[SECONDS]})

    return change


def test_table_4_divides_by_the_tanh_rnn_of_the_same_run(tmp_path, hands, monkeypatch, derived):
    seconds = {"tanh_rnn": 8.0, "lru": 1.0, "s4d": 2.0, "s5": 16.0}

    def step(mixer, work, scale):
        return hands.taking(mixer, seconds[mixer])

    monkeypatch.setattr(table_4, "training_step", step)
    what = table_4.LRUTable4(turns=turns(hands))
    found = what.run(Setting(scale="paper", seeds=(0,), out=tmp_path))
    rates, ratios = cells(found, "Training steps"), cells(found, "Times the tanh")
    assert rates["S4D"] == ["0.500 (0.500 to 0.500)"] * 6
    assert ratios[table_4.OWN] == ["1.00×"] * 6
    assert ratios["LRU"][0] == "8.00× (7.95× on a GPU: not reproduced here)"
    assert [cell.split()[0] for cell in ratios["S5"]] == ["0.500×"] * 6
    assert cells(found, "Sizes")["Retrieval"] == ["T=4000, H=128, N=256, batch 2×64"]
    claims = {judged.claim: judged for judged in found.verdicts}
    assert len(claims) == 6 * 3
    assert claims["Text: LRU is faster than the Tanh RNN"].held == (True,) * 3
    assert claims["Text: S5 is faster than the Tanh RNN"].held == (False,) * 3
    lru = claims["Text: LRU is faster than the Tanh RNN"]
    assert lru.published == "29.4× on a GPU"
    assert lru.differences == pytest.approx([math.log10(8)] * 3)
    assert (lru.each, lru.scale) == ("rounds", "on the device that the page names")
    assert derived(what, found, "paper") == found.verdicts
    other = derived(what, found, "paper", slowed("text", "LRU"))
    assert [c.claim for c in other if c not in found.verdicts] == [lru.claim]
    assert next(c for c in other if c.claim == lru.claim).held == (False,) * 3
    assert "batches of at most 2, on the device" in table_4.SCALES["cpu"].text


def test_table_4_holds_the_others_against_the_kernel_of_pytorch(tmp_path, monkeypatch):
    asked = []

    def step(mixer, work, scale):
        return lambda: asked.append((mixer, requested(None)[0]))

    monkeypatch.setattr(table_4, "training_step", step)
    table_4.LRUTable4(turns=Turns(**QUICK)).run(Setting(scale="cpu", seeds=(0,), out=tmp_path))
    assert set(asked) == {
        *(("tanh_rnn", "reference"), ("tanh_rnn", "auto")),
        *((mixer, "auto") for mixer in ("lru", "s4d", "s5")),
    }


def test_the_small_scale_keeps_the_length_and_says_what_shrank():
    small = table_4.SCALES["cpu"].of(table_4.WORKLOADS["PathX"])
    assert (small.length, small.d_model, small.d_state, small.batch) == (16384, 32, 64, 2)
    assert "2 of 6 layers" in load("lru_table_4").scales["cpu"]


def test_table_4_runs_every_model_on_every_kind_of_task(tmp_path):
    tiny = {
        name: work._replace(length=8, d_model=16, d_state=16)
        for name, work in table_4.WORKLOADS.items()
        if name in ("Retrieval", "Pathfinder")
    }
    what = table_4.LRUTable4(tiny, {"cpu": table_4.Scale(n_layers=1)}, Turns(**QUICK))
    found = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path))
    for row in cells(found, "Training steps").values():
        assert all(float(cell.split()[0]) > 0 for cell in row)


def test_a_training_step_of_table_4_trains():
    work = table_4.WORKLOADS["Text"]._replace(length=8, d_model=16, d_state=16, batch=4, dropout=0)
    step = table_4.training_step("lru", work, table_4.Scale(n_layers=1))
    losses = [step().item() for _ in range(30)]
    assert losses[-1] < losses[0]


def runtime_with(hands, seconds, peaks, monkeypatch, **sizes):
    """The reproduction over calls that take ``seconds[name]`` a step of time."""

    def take(name, d_model, batch, *rest):
        return hands.taking(name, seconds[name] * (rest[0] if len(rest) > 1 else 1))

    for call in ("training_step", "reading", "streaming_step"):
        monkeypatch.setattr(runtime, call, take)
    given = {"d_model": 4, "batch": 2, "lengths": (512, 1024), "memory_lengths": (512,), **sizes}
    sizes = {"cpu": runtime.Sizes(batches=(8, 64), context=16, **given)}
    return runtime.MinRNNRuntime(
        sizes, turns(hands, limit=1e6, seconds=1e6), peak=lambda name, *_: peaks[name]
    )


def test_runtime_sets_ours_beside_the_published(tmp_path, hands, monkeypatch, derived):
    pytest.importorskip("matplotlib")
    seconds = {name: 1.0 for name in layers.LAYERS}
    seconds |= {"minGRU": 0.125, "GRU, loop": 10.0, "GRU, fused": 0.5, "Mamba": 0.15}
    peaks = {name: 2**20 for name in layers.LAYERS} | {"Mamba": 3 * 2**19, "LSTM, loop": None}
    what = runtime_with(hands, seconds, peaks, monkeypatch)
    found = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path))
    faster = cells(found, "Times faster")
    assert faster["minGRU against GRU, loop"] == ["80.0×", "80.0×"]
    assert faster["minGRU against GRU, fused"] == ["4.00×", "4.00×"]
    assert faster["published, minGRU against GRU"] == ["175× on a GPU: not reproduced here", "–"]
    more = cells(found, "More memory")
    assert more["Mamba over minGRU"] == ["+50 %", "+56 % on a GPU: not reproduced here"]
    assert more["minLSTM over LSTM, loop"] == ["–", "+88 % on a GPU: not reproduced here"]
    assert cells(found, "Peak memory")["LSTM, loop"] == ["not measured"]
    streams = cells(found, "Inference, one streaming step: faster")
    assert streams["minGRU against Mamba"] == [
        "+20 % (+6.6 % on a GPU: not reproduced here)",
        "+20 % (+2.9 % on a GPU: not reproduced here)",
    ]
    assert streams["minGRU against GRU, fused"] == [
        "+300 %",
        "+300 % (+19.6 % on a GPU: not reproduced here)",
    ]
    assert cells(found, "Inference, reading 16 steps at once [ms]")["GRU, loop"][0].startswith(
        "160000 "
    )
    assert any("torch.nn.GRU" in note and "cuDNN" in note for note in found.notes)
    claims = {judged.claim: judged for judged in found.verdicts}
    # of one length a ratio is printed, of one batch Mamba alone, of another all
    assert len(claims) == 4 + 2 * (2 + 6)
    first = claims["T = 512: minGRU trains faster than GRU, loop"]
    assert first.published == "175× on a GPU"
    assert first.differences == pytest.approx([math.log10(80)] * 3)
    assert first.scale == "at 1/32 of the published batch, on the device that the page names"
    assert claims["T = 512: minLSTM trains faster than LSTM, loop"].held == (None,) * 3
    assert {judged.each for judged in found.verdicts} == {"rounds"}
    slower = claims["one streaming step, batch 64: Mamba is faster than minLSTM"]
    assert slower.published == "minLSTM -1.3 % on a GPU"
    assert slower.held == (True,) * 3
    slower = claims["one streaming step, batch 8: Mamba is faster than minLSTM"]
    assert slower.published == "minLSTM -3.6 % on a GPU"
    assert derived(what, found) == found.verdicts
    other = derived(what, found, change=slowed("training-t-512", "minGRU"))
    (changed, _) = (c for c in other if c not in found.verdicts)
    assert (changed.claim, changed.held) == (first.claim, (False,) * 3)
    bytes_of = {r.row: r.measures["bytes"] for r in found.runs.part("memory, T = 512").rows}
    assert bytes_of["Mamba"] == 3 * 2**19
    assert "LSTM__loop" not in bytes_of


def test_runtime_draws_time_against_length(tmp_path, hands, monkeypatch):
    pytest.importorskip("matplotlib")
    names = dict.fromkeys(layers.LAYERS, 1.0)
    what = runtime_with(hands, names, dict.fromkeys(names), monkeypatch)
    figure = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path)).figures["time-against-length"]
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert len(axes.containers) == len(layers.LAYERS)


@pytest.mark.parametrize("name", layers.LAYERS)
def test_every_layer_trains_reads_and_streams(name):
    gradients = layers.training_step(name, 8, 2, 5, CPU)()
    assert gradients[0].shape == (2, 5, 8)
    assert all(torch.isfinite(g).all() and g.any() for g in gradients)
    y, _ = layers.reading(name, 8, 2, 5, CPU)()
    assert y.shape == (2, 5, 8)
    step = layers.streaming_step(name, 8, 3, CPU)
    step()
    step()


def test_a_loop_over_the_cell_is_the_fused_layer():
    fused, loop = (layers.build(f"GRU, {kind}", 6, CPU) for kind in ("fused", "loop"))
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    loop.cell.load_state_dict({n: getattr(fused, f"{n}_l0") for n in names})
    x = torch.randn(2, 7, 6)
    torch.testing.assert_close(loop(x)[0], fused(x)[0])


def test_an_unknown_layer_is_named():
    with pytest.raises(UnknownNameError, match="no reproductions layer named 'gru'"):
        layers.build("gru", 4, CPU)


@pytest.mark.slow
def test_peak_of_a_step_grows_with_the_batch():
    small, large = (peak.peak_of_step("minGRU", 64, batch, 1024) for batch in (8, 32))
    output = 8 * 1024 * 64 * 4
    assert small > 2 * output
    assert 3 < large / small < 5


@pytest.mark.slow
def test_no_peak_where_the_process_fails():
    assert peak.peak_of_step("no such layer", 4, 1, 2) is None


def test_all_forms_of_the_demonstration_agree_at_the_published_size():
    drawn = gated.draw(gated.TIME, gated.D_HIDDEN, gated.D_INPUT, 0, CPU)
    exact = gated.loop_hoisted(gated.Demonstration(*(z.double() for z in drawn)))
    assert exact.shape == (64, 256)
    for form in gated.FORMS.values():
        torch.testing.assert_close(form(drawn).double(), exact, rtol=0, atol=1e-5)


def test_the_demonstration_is_drawn_as_published():
    drawn = gated.draw(64, 256, 64, 0, CPU)
    assert drawn.U.std().item() == pytest.approx(1e-3, rel=0.05)
    assert (drawn.nu[0].item(), drawn.nu[-1].item()) == pytest.approx((0.1, 0.9))
    steps = torch.tensor([b - a for a, b in pairwise(drawn.theta.tolist())])
    torch.testing.assert_close(steps, torch.full((255,), 2 * math.pi / 256), rtol=0, atol=1e-6)


@pytest.mark.parametrize("nu", [0.9, 0.1, 0.01])
def test_cumulative_sums_overflow_in_double_where_the_formula_says_and_the_scan_does_not(nu):
    found = gated.overflow(nu, torch.float64)
    assert found.formula == pytest.approx(709.78 / nu, rel=1e-4)
    # the sum adds up to 1 / (1 - exp(-nu)) terms like its last, so it may end a little earlier
    early = -math.log(-math.expm1(-nu)) / nu
    assert found.formula - early - 1 <= found.first <= found.formula + 1 + 1 / nu
    assert found.error < 1e-12
    assert found.length >= 2 * found.formula - 1
    assert found.scan_error < 1e-12


def test_single_precision_ends_after_a_hundred_steps_of_the_published_decays():
    found = gated.overflow(0.9, torch.float32)
    assert found.first == 99
    assert found.scan_error < 1e-6


def test_input_gated_lru_says_where_it_is_not_finite(tmp_path, derived):
    what = gated.InputGatedLRUSpeed((64, 128), 16, (0.9,), Turns(**QUICK))
    found = what.run(Setting(scale="paper", seeds=(0,), out=tmp_path))
    errors = cells(found, "Largest error")
    assert errors["cumulative sums"][1] == "not finite"
    assert float(errors["linear_scan"][1]) < 1e-5
    (judged,) = found.verdicts
    assert judged.claim == "T = 64: cumulative sums are faster than the loop as published"
    assert len(judged.held) == len(judged.differences) == 3
    assert derived(what, found, "paper") == found.verdicts
    (other,) = derived(what, found, "paper", slowed("t-64", "cumulative_sums"))
    assert other.held == (False,) * 3
    assert cells(found, "Where cumulative sums")["0.9, float32"][1] == "99"
    assert set(cells(found, "Times faster")) == {
        *(set(gated.FORMS) - {"loop, as published"}),
        "published, cumulative sums",
    }
    assert all(cell.endswith("×") for cell in cells(found, "Times faster")["linear_scan"])
