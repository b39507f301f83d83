"""Losses that layers add reach training by every learner, and nothing else is changed by them."""

import copy

import lightning
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError, NonFiniteError
from linrnn.mixers import Mixer, added_losses
from linrnn.ops import linear_scan
from linrnn.state_spec import real
from linrnn.train import OptimConfig, TrainingModule

ROWS, TIME = 3, 12
mse = nn.functional.mse_loss


class Adding(Mixer):
    """A decaying sum, and a guess of its input that only a loss of its own trains."""

    family = "diagonal"
    computed = 0

    def __init__(self, d_model, *, adds=True, device=None, dtype=None):
        super().__init__()
        self.d_model, self.adds = d_model, adds
        to = {"device": device, "dtype": dtype}
        self.logit = nn.Parameter(torch.empty(d_model, **to))
        self.guess = nn.Parameter(torch.empty(d_model, **to))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.logit)
        nn.init.normal_(self.guess)

    def state_spec(self):
        return real(d_model=self.d_model)

    def _read(self, x, state, reset):
        if self.adds and self.asks_for_loss():
            Adding.computed += 1
            self.add_loss((self.guess - x.detach()).square().mean())
        return linear_scan(self.logit.sigmoid(), x, state, reset=reset)


class Quiet(TrainingModule):
    """One that writes down what it would log."""

    def observe(self, stage, loss, y, target):
        self.seen = loss


def make(adds=True):
    torch.manual_seed(0)
    options = {"mixer": Adding, "mixer_options": {"adds": adds}, "d_model": 4, "n_layers": 2}
    return SequenceModel(1, 1, **options, norm="layer", pool="none", dtype=torch.float64)


@pytest.fixture
def batch():
    x = torch.randn(ROWS, TIME, 1, generator=torch.Generator().manual_seed(1)).double()
    return x, x.cumsum(1)


def learned(batch, name, *, adds=True):
    """Gradients by name, and what would be logged."""
    model = make(adds)
    options = {"window": 4} if name in ("tbptt", "rtrl", "chunked_rtrl") else {}
    try:
        module = Quiet(model, mse, learner=name, learner_options=options)
    except ArgumentError as refused:
        pytest.skip(str(refused))
    module.learn_from(batch)
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, module.seen


# `fptt` moves the weights inside a batch, which takes a trainer
@pytest.mark.parametrize("name", [name for name in learn.names() if name != "fptt"])
def test_every_learner_minimises_what_layers_add(name, batch):
    found, seen = learned(batch, name)
    plain, alone = learned(batch, name, adds=False)
    assert seen == alone  # what is logged is the loss of the task
    model = make()
    with added_losses() as added:
        model(batch[0])
    total = added.take()
    for n, p in model.named_parameters():
        (own,) = torch.autograd.grad(total, p, retain_graph=True, allow_unused=True)
        if n.endswith("guess"):
            assert own.abs().min() > 0
            torch.testing.assert_close(found[n], own)
        else:
            assert own is None
            assert (n in found) == (
                n in plain
            )  # a norm before a layer has none by local_representation_alignment
            if n in plain:  # a layer without a loss of its own is learned from by its steps
                near = 1e-12 if name == "diagonal_rtrl" else 0
                torch.testing.assert_close(found[n], plain[n], rtol=near, atol=near / 1000)


def test_layers_are_asked_in_training_with_gradients_and_never_else(batch):
    model, x = make(), batch[0]

    def asked(*, inside=True):
        before = Adding.computed
        if not inside:
            model(x)
        else:
            with added_losses() as added:
                model(x)
            assert (added.take() is None) == (Adding.computed == before)
        return Adding.computed > before

    assert asked()
    assert not asked(inside=False)
    with torch.no_grad():
        assert not asked()
    model.eval()
    assert not asked()
    model.train()
    with added_losses():
        before = Adding.computed
        torch.func.vjp(lambda x: model(x)[0], x)
        assert Adding.computed == before


def test_each_is_taken_once_and_the_innermost_collects(batch):
    model = make()
    with added_losses() as outer:
        with added_losses() as inner:
            model(batch[0])
        assert outer.take() is None
        assert inner.take() > 0
        assert inner.take() is None
        model(batch[0])
    assert outer.take() > 0
    model(batch[0])  # nobody collects any more
    assert outer.take() is None


def test_what_a_checkpoint_computes_again_is_not_counted_twice(batch):
    model = make()
    plain = Quiet(copy.deepcopy(model), mse)
    plain.learn_from(batch)

    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.init_state = model, model.init_state

        def forward(self, x, state=None):
            return checkpoint(self.model, x, state, use_reentrant=False)

    saving = Quiet(Saving(), mse, learner="tbptt", learner_options={"window": 4})
    saving.learn_from(batch)
    expected = {f"model.{n}": p.grad for n, p in plain.model.named_parameters()}
    for n, p in saving.model.named_parameters():
        if n.endswith("guess"):
            torch.testing.assert_close(p.grad, expected[n])


def trained(tmp_path, epochs, path=None):
    x = torch.randn(8, TIME, 1, generator=torch.Generator().manual_seed(2)).double()
    loader = DataLoader(TensorDataset(x, x.cumsum(1)), batch_size=4)
    module = TrainingModule(make(), mse, optim=OptimConfig(lr=0.05, schedule="constant"))
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=tmp_path,
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(module, loader, ckpt_path=path)
    trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
    return module.model.state_dict()


def test_training_and_resuming_give_the_same_bits(tmp_path):
    whole = trained(tmp_path, 2)
    trained(tmp_path, 1)
    again = trained(tmp_path, 2, tmp_path / "1.ckpt")
    start = make().state_dict()
    for name, value in whole.items():
        assert torch.equal(again[name], value)
        assert not torch.equal(start[name], value)


@pytest.mark.unchecked
def test_an_added_loss_that_is_not_finite_stops_the_run(batch):
    model = make()
    nn.init.constant_(model.blocks[1].mixer.guess, 1e200)
    module = Quiet(model, mse)
    with pytest.raises(NonFiniteError, match="the loss must be finite"):
        module.learn_from(batch)
