import pytest
import torch

from linrnn import SequenceModel
from linrnn.tasks import load
from linrnn.tasks._kinds.base import IGNORE
from linrnn.train._outputs import answers, outputs, why_not_streamed
from linrnn.train.data import Batch


def make(pool="last", **options):
    options = {"mixer": "mingru", "d_model": 8, "n_layers": 2} | options
    return SequenceModel(3, 5, pool=pool, **options).eval()


@pytest.mark.parametrize("pool", ["last", "mean", "none"])
@pytest.mark.parametrize("block", ["glu", "channel_mix"])
@torch.no_grad()
def test_chunks_give_what_one_pass_gives(pool, block):
    model = make(pool, block=block, conv_width=4)
    x, target = torch.randn(4, 23, 3), torch.zeros(4, 23, dtype=torch.int64)
    y, left = answers(model, Batch(x, target, None, None), 5)
    torch.testing.assert_close(y, outputs(model, x), atol=1e-5, rtol=1e-4)
    assert torch.equal(left, target)


@pytest.mark.parametrize("pool", ["last", "mean"])
@torch.no_grad()
def test_padding_is_left_out_in_chunks_too(pool):
    model, x, lengths = make(pool), torch.randn(4, 23, 3), torch.tensor([23, 1, 10, 12])
    y, _ = answers(model, Batch(x, torch.zeros(4), lengths, None), 5)
    torch.testing.assert_close(y, outputs(model, x, lengths), atol=1e-5, rtol=1e-4)
    for row, length in enumerate(lengths):
        alone = outputs(model, x[row : row + 1, :length])
        torch.testing.assert_close(y[row], alone[0], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_sequence_that_begins_anew_in_a_chunk_does_so():
    model, x, reset = make("none"), torch.randn(2, 12, 3), torch.zeros(2, 12, dtype=torch.bool)
    reset[0, 7] = True
    y, _ = answers(model, Batch(x, torch.zeros(2, 12, 5), None, reset), 5)
    torch.testing.assert_close(y, outputs(model, x, None, reset), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(y[:1, 7:], outputs(model, x[:1, 7:]), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_times_between_steps_are_cut_with_them():
    model, x, dt = make("none", mixer="cfc"), torch.randn(2, 12, 3), torch.rand(2, 12)
    y, _ = answers(model, Batch(x, torch.zeros(2, 12, 5), None, None, dt), 5)
    torch.testing.assert_close(y, model(x, dt=dt)[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(y, outputs(model, x, dt=dt), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(y, outputs(model, x), atol=1e-3)


@torch.no_grad()
def test_steps_that_nobody_asks_about_are_not_kept():
    task = load("selective_copy")().at_length(20)
    model = make("none", encoder="tokens")
    x = torch.randint(0, 3, (2, 23))
    target = torch.full((2, 23), IGNORE)
    target[0, 7], target[1, 20] = 1, 4
    y, left = answers(model, Batch(x, target, None, None), 10)
    assert y.shape == (2, 2, 5)
    assert left.tolist() == [[1, IGNORE], [IGNORE, 4]]
    whole = outputs(model, x)
    torch.testing.assert_close(task.loss(y, left), task.loss(whole, target))
    assert torch.equal(task.scores(y, left), task.scores(whole, target))


@torch.no_grad()
def test_numbers_asked_for_at_every_step_are_all_kept():
    batch = Batch(torch.randn(2, 9, 3), torch.randn(2, 9, 5), None, None)
    y, target = answers(make("none"), batch, 4)
    assert y.shape == target.shape == (2, 9, 5)


def test_which_models_are_not_streamed():
    assert why_not_streamed(make()) is None
    assert why_not_streamed(make(mixer="attention", mixer_options={"window": 4})) is None
    assert why_not_streamed(make(bidirectional=True)) == "it reads in both directions"
    grows = "the state of Attention grows with what was read"
    assert why_not_streamed(make(mixer="attention")) == grows
