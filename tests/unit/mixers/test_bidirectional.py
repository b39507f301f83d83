"""Bidirectional: each direction starts at its own end of each sequence, for every mixer."""

import pytest
import torch
from torch.testing import assert_close

from linrnn import mixers
from linrnn.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from linrnn.mixers import Bidirectional
from linrnn.nn.lengths import reverse
from linrnn.state import leaves
from linrnn.testing import check_property

WIDTH = 6
each_mixer = pytest.mark.parametrize("name", mixers.names())
NO_RESET = {n for n in mixers.names() if "reset_and_packing" in mixers.load(n).declared}


def layer(name="lru", **options):
    torch.manual_seed(0)
    return Bidirectional.build(name, WIDTH, dtype=torch.float64, **options).eval()


def signal(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, WIDTH, dtype=torch.float64, generator=generator)


@pytest.mark.sampled
@each_mixer
@pytest.mark.parametrize("merge", ["sum", "concat"])
def test_output_is_that_of_two_mixers_one_reading_the_flipped_input(name, merge):
    both, x = layer(name, merge=merge), signal(2, 9)
    ahead, last = both.ahead(x)
    back = both.back(x.flip(1))[0].flip(1)
    y, state = both(x)
    assert_close(y, ahead + back if merge == "sum" else torch.cat([ahead, back], -1))
    assert y.shape[-1] == both.d_output
    for got, expected in zip(leaves(state), leaves(last), strict=True):
        assert_close(got, expected)


@pytest.mark.sampled
@each_mixer
def test_flipping_the_input_and_swapping_the_mixers_flips_the_output(name):
    both, x = layer(name), signal(2, 9)
    swapped = Bidirectional(both.back, both.ahead)
    assert_close(swapped(x.flip(1))[0].flip(1), both(x)[0])


@pytest.mark.sampled
@each_mixer
def test_padding_changes_nothing(name):
    both, x = layer(name), signal(3, 9)
    lengths = torch.tensor([9, 4, 1])
    y, _ = both(x, lengths=lengths)
    for i, length in enumerate(lengths):
        assert_close(y[i, :length], both(x[i : i + 1, :length])[0][0])
    changed = x.clone()
    changed[1, 4:] = 7.0
    assert_close(both(changed, lengths=lengths)[0][1, :4], y[1, :4])


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(set(mixers.names()) - NO_RESET))
def test_packed_sequences_and_padding_give_what_each_sequence_gives_alone(name):
    both, x = layer(name), signal(1, 12)
    reset = torch.zeros(1, 12, dtype=torch.bool)
    reset[:, [3, 4]] = True
    y, _ = both(x, reset=reset, lengths=torch.tensor([10]))
    alone = [both(part)[0] for part in x[:, :10].split([3, 1, 6], 1)]
    assert_close(y[:, :10], torch.cat(alone, 1))


@pytest.mark.sampled
@each_mixer
@pytest.mark.parametrize("law", ["batch_independence", "gradients", "low_precision"])
def test_it_keeps_the_laws_of_its_mixer(name, law):
    if law in mixers.load(name).declared:
        pytest.skip(f"{name} itself declares that it cannot")
    check_property(law, lambda **options: Bidirectional(mixers.load(name)(**options)))


@pytest.mark.parametrize("law", ["causal", "reset_and_packing", "constant_memory", "round_trip"])
def test_further_laws(law):
    make = lambda **options: Bidirectional(mixers.load("lru")(**options))  # noqa: E731
    check_property(law, make)
    assert (law in layer().declared) == (law == "causal")
    assert not layer().causal


@each_mixer
def test_it_says_of_itself_what_its_mixer_does(name):
    both = layer(name)
    assert both.cost == both.ahead.cost
    assert both.constant_state == both.ahead.constant_state
    declared = {law: why for law, why in both.ahead.declared.items() if law != "causal"}
    assert declared.items() <= both.declared.items()


@pytest.mark.sampled
@each_mixer
def test_nothing_to_read(name):
    y, state = layer(name, merge="concat")(signal(2, 0), lengths=torch.zeros(2).long())
    assert y.shape == (2, 0, 2 * WIDTH)
    assert len(leaves(state)[0]) == 2


def test_a_carried_state_reaches_the_forward_mixer_alone():
    both, x = layer(merge="concat"), signal(2, 9)
    whole, last = both(x)
    _, carried = both(x[:, :5])
    y, state = both(x[:, 5:], carried)
    assert_close(y[..., :WIDTH], whole[:, 5:, :WIDTH])
    assert_close(y[..., WIDTH:], whole[:, 5:, WIDTH:])  # read first, so nothing is missing
    assert_close(state, last)
    assert leaves(both.init_state(2))[0].shape == state.shape


def test_the_second_mixer_is_drawn_anew_or_shares_the_recurrence():
    both = layer()
    assert not torch.equal(both.ahead.nu_log, both.back.nu_log)
    built = Bidirectional(mixers.build("lru", WIDTH, {"d_state": 3, "r_max": 0.5}))
    assert built.back.d_state == 3
    assert built.back.r_max == 0.5
    assert not torch.equal(built.ahead.B, built.back.B)
    assert built.eigenvalues().shape == (6,)
    shared = layer(shared=True)
    for name, parameter in shared.ahead.named_parameters():
        other = shared.back.get_parameter(name)
        assert (other is parameter) == (name in shared.ahead.recurrent_parameters), name
    assert shared.eigenvalues().shape == (WIDTH,)
    shared(signal(1, 4))[0].sum().backward()
    assert shared.ahead.B.grad is not None


@pytest.mark.sampled
@each_mixer
def test_sharing_works_or_is_refused(name):
    mixer = layer(name).ahead
    recurrent = {n for n, _ in mixer.named_parameters()} & set(mixer.recurrent_parameters)
    if not recurrent:
        with pytest.raises(ArgumentError, match="names no recurrent_parameters"):
            layer(name, shared=True)
        return
    n_apart = sum(p.numel() for p in layer(name).parameters())
    both = layer(name, shared=True)
    tied = sum(both.ahead.get_parameter(n).numel() for n in recurrent)
    assert sum(p.numel() for p in both.parameters()) == n_apart - tied
    again = layer(name, shared=True)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(both.state_dict())
    assert_close(again(signal(1, 5))[0], both(signal(1, 5))[0])


@pytest.mark.parametrize("time", [0, 1, 5])
def test_reverse_is_its_own_inverse(time):
    x = torch.arange(2 * time).view(2, time)
    stop = torch.tensor([time, time // 2])
    assert_close(reverse(reverse(x, stop), stop), x)
    assert_close(reverse(x, stop)[0], x[0].flip(0))


def test_reverse_of_rows_that_end_together():
    x = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
    got = reverse(x, start=torch.tensor([0, 2]))
    assert got.tolist() == [[4, 3, 2, 1], [1, 2, 4, 3]]


@pytest.mark.unchecked
def test_it_compiles():
    both, x = layer().float(), signal(2, 9).float()
    lengths = torch.tensor([9, 4])
    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x, lengths=lengths)[0], both(x, lengths=lengths)[0])


@pytest.mark.unchecked
def test_errors():
    both, x = layer(), signal(2, 5)
    with pytest.raises(ArgumentError, match=r"step: the input must be a whole sequence, got one"):
        both.step(x[:, 0], both.init_state(2))
    with pytest.raises(UnknownNameError, match="Did you mean 'concat'"):
        layer(merge="concta")
    with pytest.raises(ArgumentError, match="LRU with d_model=6, got LRU with d_model=4"):
        Bidirectional(both.ahead, mixers.build("lru", 4))
    with pytest.raises(ArgumentError, match=r"lengths must be in 0..5, the steps of x, got -1"):
        both(x, lengths=torch.tensor([-1, 3]))
    with pytest.raises(ArgumentError, match=r"lengths must be in 0..5, the steps of x, got 6"):
        both(x, lengths=torch.tensor([2, 6]))
    with pytest.raises(ShapeError, match=r"lengths must have shape \(batch=2\), got \(3,\)"):
        both(x, lengths=torch.tensor([2, 3, 4]))
    with pytest.raises(DTypeError, match="lengths must be integers, got"):
        both(x, lengths=torch.tensor([2.0, 3.0]))
    with pytest.raises(ShapeError, match=r"d_model=6"):
        both(torch.randn(2, 5, 4))
