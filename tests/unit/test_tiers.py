"""A stack at several rates: one pass, pieces and steps; causal; the published equations."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from linrnn import SequenceModel, mixers
from linrnn import state as states
from linrnn.cli import main
from linrnn.compute import native
from linrnn.engine.replay import program
from linrnn.engine.replay import step as _recorded_step
from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.nn import Resample
from linrnn.state import leaves
from linrnn.streaming import Sessions
from linrnn.train import Config, ModelConfig, load_model
from linrnn.train.model import build_model, build_task

F64 = torch.float64
TIME = 19
GROWING = {n for n in mixers.names() if "constant_memory" in mixers.load(n).declared}
STACKS = [
    {"tiers": (2,)},
    {"tiers": (3, 2), "unet": True, "expand": 1},
    {"tiers": (2, 3), "conv_width": 3, "n_layers": 2},
]


def model(**options):
    torch.manual_seed(0)
    usual = {"mixer": "mingru", "d_model": 4, "n_layers": 1, "norm": "layer", "block": "glu_mlp"}
    net = SequenceModel(3, 4, **{**usual, "pool": "none", "dtype": F64, **options}).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return net


def by_steps(net, x, state, reset=None, dt=None):
    """One step after the other, those that begin anew as sequences of one."""
    outputs = []
    for t in range(x.shape[1]):
        times = {} if dt is None else {"dt": dt[:, t]}
        if reset is None or not reset[:, t].any():
            y, state = net.step(x[:, t], state, **times)
        else:
            y, state = net(
                x[:, t : t + 1],
                state,
                reset=reset[:, t : t + 1],
                **{k: v[:, None] for k, v in times.items()},
            )
            y = y[:, 0]
        outputs.append(y)
    return torch.stack(outputs, 1), state


def in_pieces(net, x, state, reset=None, dt=None):
    outputs, cuts = [], [0, 1, 6, 6, 11, x.shape[1]]
    for a, b in itertools.pairwise(cuts):
        part = {k: v[:, a:b] for k, v in (("reset", reset), ("dt", dt)) if v is not None}
        y, state = net(x[:, a:b], state, **part)
        outputs.append(y)
    return torch.cat(outputs, 1), state


def started(net, rows):
    """A state in the middle of groups, of which gradients are asked; None begins anew."""
    with torch.no_grad():
        state = net(torch.randn(rows, 4, 3, dtype=F64))[1]
        state = net(
            torch.randn(rows, 1, 3, dtype=F64), state, reset=torch.arange(rows)[:, None] == 1
        )[1]
    return states.map_state(
        lambda h: h.requires_grad_() if h.is_floating_point() or h.is_complex() else h, state
    )


def results(read, net, x, state, reset):
    """Outputs, the state after them, and the gradients of everything."""
    start = net.init_state(len(x)) if state is None and read is by_steps else state
    y, after = read(net, x, start, reset=reset)
    real = [torch.view_as_real(h) if h.is_complex() else h for h in leaves(after)]
    torch.manual_seed(1)
    total = sum((h * torch.randn(h.shape, dtype=F64)).sum() for h in (y, *real))
    given = [] if state is None else [h for h in leaves(state) if h.requires_grad]
    wanted = [x, *given, *net.parameters()]
    gradients = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
    return [y, *leaves(after), *gradients]


def one_pass(net, x, state, reset=None, dt=None):
    return net(x, state, reset=reset, dt=dt)


@pytest.mark.parametrize("cut", [False, True], ids=["", "resets"])
@pytest.mark.parametrize("begun", [False, True], ids=["", "begun"])
@pytest.mark.parametrize("options", STACKS, ids=str)
def test_pieces_and_steps_equal_one_pass_with_all_gradients(options, begun, cut):
    net = model(**options)
    x = torch.randn(3, TIME, 3, dtype=F64, requires_grad=True)
    state = started(net, 3) if begun else None
    reset = torch.rand(3, TIME) < 0.15 if cut else None
    whole = results(one_pass, net, x, state, reset)
    for read in (in_pieces, by_steps):
        for got, want in zip(results(read, net, x, state, reset), whole, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.sampled
@pytest.mark.parametrize("mixer", mixers.names())
def test_every_mixer_reads_at_several_rates(mixer):
    net = model(mixer=mixer, d_model=8, tiers=(2,), expand=1)
    rows = 1 if mixer in GROWING else 2
    x, reset = torch.randn(rows, 9, 3, dtype=F64), torch.zeros(rows, 9, dtype=torch.bool)
    reset[0, [3, 4]] = True
    with torch.no_grad():
        for cut in (None, reset):
            y, state = net(x, reset=cut)
            other, after = by_steps(net, x, net.init_state(rows), cut)
            torch.testing.assert_close(other, y)
            if mixer not in GROWING:  # whose states may be cut otherwise
                for got, want in zip(leaves(after), leaves(state), strict=True):
                    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("options", STACKS, ids=str)
def test_a_reset_begins_a_sequence_and_its_groups(options):
    net = model(**options, mixer="lru")
    x = torch.randn(1, TIME, 3, dtype=F64)
    x[:, 4] = float("nan")
    bounds, reset = [5, 6, 13], torch.zeros(1, TIME, dtype=torch.bool)
    reset[:, bounds] = True
    y, state = net(x, reset=reset)
    alone = [net(x[:, a:b]) for a, b in itertools.pairwise([*bounds, TIME])]
    torch.testing.assert_close(y[:, 5:], torch.cat([part for part, _ in alone], 1))
    for got, want in zip(leaves(state), leaves(alone[-1][1]), strict=True):
        torch.testing.assert_close(got, want)


def test_no_output_depends_on_a_later_input():
    net = model(tiers=(3, 2), unet=True)

    def last(x):
        return net(x[None])[0][0].sum(-1)

    x = torch.randn(TIME, 3, dtype=F64)
    found = torch.autograd.functional.jacobian(last, x).abs().sum(-1)  # (output, input)
    assert not found.triu(1).any()
    assert (found.diagonal() > 0).all()
    assert (found[12:, 0] > 0).all()  # the first group has come back by then


@pytest.mark.parametrize("unet", [False, True])
def test_the_published_equations(unet):
    """The public code's forward pass, on lengths that both tiers divide, written out."""
    p, n = (2, 3), 2
    net = model(mixer="lru", tiers=p, n_layers=n, unet=unet)
    x = torch.randn(2, 12, 3, dtype=F64)
    blocks = iter([lambda z, b=b: b(z)[0] for b in net.blocks])
    z, outputs = net.encoder(x), []
    outputs.append(z)
    for factor, part in zip(p, net.between, strict=True):
        for _ in range(n if unet else 0):
            z = next(blocks)(z)
            outputs.append(z)
        z = part.down(z.reshape(2, z.shape[1] // factor, -1))
        outputs.append(z)
    for _ in range(n):
        z = next(blocks)(z)
    z = z + outputs.pop()
    for factor, part in reversed([*zip(p, net.between, strict=True)]):
        z = nn.functional.pad(part.up(z)[:, :-1], (0, 0, 1, 0)).reshape(2, factor * z.shape[1], -1)
        z = z + outputs.pop()
        before = z
        for _ in range(n):
            z = next(blocks)(z)
            z = z + outputs.pop() if unet else z
        z = z if unet else z + before
    assert not outputs
    torch.testing.assert_close(net(x)[0], net.head(z))
    assert [m.d_model for m in net.mixers] == [4, 4, 8, 8] * unet + [16, 16, 8, 8, 4, 4]
    assert [b.mlp.up.out_features // b.mlp.up.in_features for b in net.blocks] == [4] * len(
        net.blocks
    )


def test_times_between_steps_are_those_of_groups():
    net = model(mixer="s4d,mingru", tiers=(2, 2), n_layers=2)
    x, dt = torch.randn(2, TIME, 3, dtype=F64), 0.3 + torch.rand(2, TIME, dtype=F64)
    reset = torch.rand(2, TIME) < 0.15
    for cut in (None, reset):
        whole = net(x, reset=cut, dt=dt)
        for read in (in_pieces, by_steps):
            y, state = read(net, x, net.init_state(2), reset=cut, dt=dt)
            torch.testing.assert_close(y, whole[0])
            for got, want in zip(leaves(state), leaves(whole[1]), strict=True):
                torch.testing.assert_close(got, want)
    plain, ones = net(x)[0], net(x, dt=torch.ones_like(dt))[0]
    torch.testing.assert_close(ones, plain)
    assert (net(x, dt=dt)[0] - plain).abs().max() > 1e-3
    # times of before count in a group that is completed without any
    first = net(x[:, :3], dt=dt[:, :3])[1]
    after = net(x[:, 3:], first)[0]
    mixed = torch.cat([dt[:, :3], torch.ones_like(dt[:, 3:])], 1)
    torch.testing.assert_close(after, net(x, dt=mixed)[0][:, 3:])


def test_most_steps_leave_the_lower_tiers_alone():
    net, seen = model(tiers=(2, 3)), []
    for i, block in enumerate(net.blocks):
        step = block.step
        block.step = lambda *a, i=i, step=step, **k: seen.append(i) or step(*a, **k)
    state, x = net.init_state(1), torch.randn(1, 12, 3, dtype=F64, requires_grad=True)
    for t in range(12):
        _, state = net.step(x[:, t], state)
    assert [seen.count(i) for i in range(3)] == [2, 6, 12]  # the innermost block is read first


@pytest.mark.skipif(
    native.load()[0] is None or not program.operations(),
    reason="the native kernels are not installed, or not these",
)
def test_blocks_are_one_native_call_each_with_the_same_numbers():
    net = model(tiers=(2, 2), mixer="s4d", dtype=torch.float32)
    x, state = torch.randn(2, 9, 3), net.init_state(2)
    with torch.no_grad():
        y, _ = by_steps(net, x, state)
    assert all(any(k.program for k in _recorded_step._kinds[b].values()) for b in net.blocks)
    torch.testing.assert_close(y, net(x)[0], rtol=1e-4, atol=1e-5)


def test_streams_at_different_places_are_fed_together():
    net = model(tiers=(2, 2), mixer="lru")
    pool, x = Sessions(net, capacity=3), torch.randn(11, 3, dtype=F64)
    got = {"a": [], "b": []}
    pool.join("a")
    got["a"].append(pool.feed({"a": x[:3]})["a"])
    pool.join("b")
    for t in range(8):
        fed = pool.feed({"a": x[3 + t : 4 + t], "b": x[t : t + 1]})
        for name in got:
            got[name].append(fed[name])
    expected = net(x[None])[0][0]
    torch.testing.assert_close(torch.cat(got["a"]), expected)
    torch.testing.assert_close(torch.cat(got["b"]), expected[:8])


@pytest.mark.unchecked
def test_a_graph_of_a_whole_sequence_begins_anew():
    net = model(tiers=(2, 3), dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend="eager", dynamic=True)
    for time in (7, 13):
        x = torch.randn(2, time, 3)
        torch.testing.assert_close(compiled(x)[0], net(x)[0])


def test_it_is_trained_and_read_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("how does it read, and what does it write? " * 60)
    words = "--recipe none --mixer mingru --model.pool none --model.d-model 4 --model.n-layers 2 "
    words += "--model.tiers 3 2 --model.expand 1 --model.unet --train.epochs 1 --task.length 16 "
    words += "--train.batch-size 32 --task.tokenizer byte --task.data text.txt"
    assert main(["train", "lm", *words.split()]) == 0
    net, _, config = load_model(*(tmp_path / "runs").iterdir())
    assert (config.model.tiers, len(net.blocks), len(net.between)) == ((3, 2), 10, 2)


def test_transformers_keep_it(tmp_path):
    pytest.importorskip("transformers")
    from linrnn.interop.hf import LinrnnConfig, LinrnnForCausalLM

    config = LinrnnConfig(vocab_size=5, mixer="mingru", d_model=4, n_layers=1, tiers=(2, 2))
    net = LinrnnForCausalLM(config).eval()
    net.save_pretrained(tmp_path)
    again = LinrnnForCausalLM.from_pretrained(tmp_path).eval()
    assert tuple(again.config.tiers) == (2, 2)
    ids = torch.randint(5, (1, 9))
    torch.testing.assert_close(again(ids).logits, net(ids).logits)
    given = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    greedy = net.generate(ids, max_new_tokens=5, **given)
    for n in range(9, 14):
        assert net(greedy[:, :n]).logits[0, -1].argmax() == greedy[0, n]


ERRORS = [
    ({"tiers": (1,)}, r"tiers must be integers of at least 2, got \(1,\)"),
    ({"tiers": (2, 2.5)}, r"tiers must be integers of at least 2, got \(2, 2.5\)"),
    ({"tiers": (2,), "expand": 0}, "expand must be an integer of at least 1, got 0"),
    ({"unet": True}, "unet must be False without tiers, got True. Say tiers="),
    ({"tiers": (2,), "bidirectional": True}, "bidirectional must be False with tiers"),
]


@pytest.mark.unchecked
@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_what_is_no_stack_is_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        model(**options)
    with pytest.raises(ArgumentError, match="Resample: factor must be an integer of at least 2"):
        Resample(4, 1)


@pytest.mark.unchecked
def test_sequences_too_short_for_the_tiers_are_refused():
    config = Config(task="lm", model=ModelConfig(tiers=(4, 4), pool="none"))
    short = replace(config, task_options=replace(config.task_options, length=15))
    with pytest.raises(ArgumentError, match=r"tiers must pool at most the 15 steps .* 16 steps in"):
        build_model(short, build_task(short))
    assert len(build_model(config, build_task(config)).between) == 2


def test_half_precision_adds_up_in_full():
    net, seen = model(tiers=(2, 2), dtype=torch.float32, encoder="tokens"), []
    for block in net.blocks:
        block.register_forward_hook(lambda _, args, out: seen.extend((args[0], out[0])))
    x = torch.randint(3, (2, TIME))
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = net(x)
        other, state = in_pieces(net, x, net.init_state(2))
    assert {z.dtype for z in seen} == {torch.float32}
    torch.testing.assert_close(other, y, rtol=0.05, atol=0.05)
    assert all(h.dtype == torch.float32 for t in state["tiers"] for h in (t["past"], t["ahead"]))


@pytest.mark.unchecked
def test_states_that_do_not_fit_are_refused():
    net, x = model(tiers=(2, 3)), torch.randn(2, 5, 3, dtype=F64)
    state = net.init_state(2)
    with pytest.raises(DTypeError, match=r"state must be what this model returned .*'tiers': "):
        net(x, {"layers": state["layers"], "pool": {}})
    with pytest.raises(ArgumentError, match="state must hold 2 tiers like the model, got 1"):
        net(x, {**state, "tiers": state["tiers"][:1]})
    with pytest.raises(ShapeError, match=r"Resample: state\['past'\] must have shape"):
        net(x, {**state, "tiers": state["tiers"][::-1]})
    for count in (-1, 2):
        bad = [{**state["tiers"][0], "count": torch.tensor([0, count])}, state["tiers"][1]]
        with pytest.raises(
            ArgumentError, match=rf"state\['count'\] must be in 0\.\.1.* got {count}"
        ):
            net(x, {**state, "tiers": bad})


@pytest.mark.unchecked
@pytest.mark.parametrize("mixer", ["attention", "hyena"])
def test_rows_at_different_places_need_a_state_of_fixed_size(mixer):
    net, x = model(mixer=mixer, tiers=(2,)), torch.randn(2, 6, 3, dtype=F64)
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[0, 3] = True
    with pytest.raises(ArgumentError, match="rows must be at the same place in their groups where"):
        net(x, reset=reset)
    reset[1, 3] = True
    torch.testing.assert_close(net(x, reset=reset)[0][:, 3:], net(x[:, 3:])[0])
