"""A constraint holds whoever trains: in a plain loop, through every door, in copies and files."""

import copy
import pickle

import pytest
import torch

from linrnn import RNN, SequenceModel, mixers
from linrnn.train import TrainingModule

WIDTH = 6
#: Options with which layers that have a constraint, or count updates, have it.
CONSTRAINED = {
    "ind_rnn": {"t_max": 20},
    "ltc": {"positive": "clip", "unfolds": 2},
}
COUNTING = {
    "rfa": {"redraw_every": 4},
    "performer": {"redraw_every": 4},
    "arc_cosine": {"redraw_every": 4},
    "exp_rnn": {"dtriv": 4},
}
DOORS = {
    "layer": lambda name, options: mixers.build(name, WIDTH, options),
    "SequenceModel": lambda name, options: SequenceModel(
        WIDTH, WIDTH, mixer=name, mixer_options=options, d_model=WIDTH, n_layers=2, pool="none"
    ),
    "RNN": lambda name, options: RNN(name, WIDTH, WIDTH, 2, mixer_options=options),
    "copy": lambda name, options: copy.deepcopy(mixers.build(name, WIDTH, options)),
    "pickle": lambda name, options: pickled(mixers.build(name, WIDTH, options)),
}


def pickled(module):
    return pickle.loads(pickle.dumps(module))  # noqa: S301 - made here


each_door = pytest.mark.parametrize("door", DOORS)


def train(model, steps, optimiser=torch.optim.Adam, lr=1.0):
    """A training loop as anybody writes it."""
    optimizer = optimiser(model.parameters(), lr=lr)
    x = torch.randn(3, 5, WIDTH)
    for _ in range(steps):
        optimizer.zero_grad()
        y, _ = model(x)
        (y - 3 * torch.randn_like(y)).square().mean().backward()
        optimizer.step()


def layers(model):
    return [part for part in model.modules() if isinstance(part, mixers.Mixer)]


@each_door
@pytest.mark.parametrize("name", CONSTRAINED)
def test_after_a_hundred_steps_of_adam_parameters_lie_within_their_bounds(name, door):
    model = DOORS[door](name, CONSTRAINED[name])
    train(model, 100)
    for layer in layers(model):
        assert layer.bounds()
        for key, (low, high) in layer.bounds().items():
            value = layer.state_dict()[key]
            assert low <= value.min()
            assert value.max() <= high


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_so_they_do_with_other_optimisers(optimiser):
    layer = mixers.IndRNN(WIDTH, t_max=20)
    train(layer, 30, optimiser)
    assert layer.u.abs().max() <= 2 ** (1 / 20)


def test_every_layer_with_bounds_or_a_count_is_tried_here():
    plain = mixers.Mixer
    overriding = set()
    for name in mixers.names():
        cls = mixers.load(name)
        if cls.bounds is not plain.bounds or cls.after_update is not plain.after_update:
            overriding.add(name)
    assert overriding == {*CONSTRAINED, *COUNTING}


@each_door
@pytest.mark.parametrize("name", COUNTING)
def test_updates_are_counted_once_for_each_step_of_the_optimiser(name, door):
    model = DOORS[door](name, COUNTING[name])
    train(model, 6, lr=1e-3)
    for layer in layers(model):
        assert int(layer.updates) == (6 if name == "exp_rnn" else 2)


def test_our_own_loop_counts_once_too(tmp_path):
    from lightning.pytorch import Trainer

    model = DOORS["SequenceModel"]("exp_rnn", COUNTING["exp_rnn"])
    x = torch.randn(10, 5, WIDTH)
    batches = torch.utils.data.DataLoader([(a, a) for a in x], batch_size=5)
    module = TrainingModule(model, lambda y, target: (y - target).square().mean())
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=3, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    trainer.fit(module, batches)
    assert [int(layer.updates) for layer in layers(model)] == [6, 6]


def test_an_optimiser_that_moves_no_parameter_of_a_layer_is_not_its_own():
    layer, other = mixers.ExpRNN(WIDTH, dtriv=4), mixers.ExpRNN(WIDTH, dtriv=4)
    train(other, 3)
    assert (int(layer.updates), int(other.updates)) == (0, 3)
    torch.optim.SGD(layer.parameters(), lr=0.1).step()  # without gradients
    assert int(layer.updates) == 0


def test_a_layer_that_is_gone_is_not_kept():
    import gc
    import weakref

    layer = mixers.IndRNN(WIDTH, t_max=20)
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None
