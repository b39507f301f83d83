"""One mixer has the same parameters and starts through every door that leads into a stack."""

import pytest
import torch

from linrnn import RNN, SequenceModel, mixers
from linrnn.backbone.pattern import Choice
from linrnn.mixers import Bidirectional
from linrnn.mixers._families.dense import TorchRNN

WIDTH, DEPTH = 8, 3
NAMES = mixers.names()
WITH_PLACE = [
    name for name in NAMES if Choice(name, {}, {"layer": 0, "n_layers": 1}, True).takes("n_layers")
]


def stack(mixer, **options):
    return SequenceModel(2, 2, mixer=mixer, d_model=WIDTH, n_layers=DEPTH, **options).mixers


def rnn(mixer, **options):
    return RNN(mixer, WIDTH, WIDTH, DEPTH, **options)._mixers()


def language(mixer):
    hf = pytest.importorskip("linrnn.interop.hf")
    config = hf.LinrnnConfig(vocab_size=4, mixer=mixer, d_model=WIDTH, n_layers=DEPTH)
    return hf.LinrnnForCausalLM(config).model.mixers


DOORS = {
    "SequenceModel": stack,
    "pattern": lambda name: stack(f"{name},2*{name}"),
    "class": lambda name: stack(mixers.load(name)),
    "instance": lambda name: stack(mixers.build(name, WIDTH)),
    "instance elsewhere": lambda name: stack(place(name, 1)),
    "RNN": rnn,
    "RNN of a class": lambda name: rnn(mixers.load(name)),
    "RNN of an instance": lambda name: rnn(mixers.build(name, WIDTH)),
    "Hugging Face": language,
}
BOTH_WAYS = {
    "SequenceModel": lambda name: stack(name, bidirectional=True),
    "instance": lambda name: stack(mixers.build(name, WIDTH), bidirectional=True),
    "RNN": lambda name: rnn(name, bidirectional=True, mixer_options=None),
}


def place(name, layer, **options):
    """The mixer of a layer, made by its constructor."""
    if name in WITH_PLACE:
        options |= {"layer": layer, "n_layers": DEPTH}
    cls = mixers.load(name)
    if names := (*(cls.carries if layer else ()), *cls.shares):
        options["receives"] = names  # of a stack whose layers are all of this class
    return mixers.build(name, WIDTH, options)


def start(mixer):
    """Everything it begins with, from one seed."""
    torch.manual_seed(7)
    mixer.reset_parameters()
    return mixer.state_dict()


def assert_alike(mixer, expected):
    numbers, wanted = start(mixer), start(expected)
    assert set(numbers) == set(wanted)
    for key, value in numbers.items():
        torch.testing.assert_close(value, wanted[key], rtol=0, atol=0, equal_nan=True, msg=key)


def expected_of(name, door, layer):
    biased = door.startswith("RNN") and "instance" not in door
    takes = biased and Choice(name, {}, {}, True).takes("bias")
    return place(name, layer, **({"bias": True} if takes else {}))


@pytest.mark.sampled
@pytest.mark.parametrize("name", WITH_PLACE)
@pytest.mark.parametrize("door", DOORS)
def test_a_mixer_that_depends_on_its_place_has_it_through_every_door(name, door):
    for layer, mixer in enumerate(DOORS[door](name)):
        assert (mixer.layer, mixer.n_layers) == (layer, DEPTH)
        assert_alike(mixer, expected_of(name, door, layer))


@pytest.mark.parametrize("name", WITH_PLACE)
@pytest.mark.parametrize("door", BOTH_WAYS)
def test_so_it_does_in_both_directions(name, door):
    found = BOTH_WAYS[door](name)
    found = [
        x for m in found for x in ((m.ahead, m.back) if isinstance(m, Bidirectional) else (m,))
    ]
    assert len(found) == 2 * DEPTH
    for at, mixer in enumerate(found):
        assert (mixer.layer, mixer.n_layers) == (at // 2, DEPTH)
        assert_alike(mixer, expected_of(name, door, at // 2))


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITH_PLACE])
def test_every_other_mixer_starts_alike_through_three_doors(name):
    if not hasattr(mixers.load(name), "reset_parameters"):
        pytest.skip("it draws nothing")
    of_torch = issubclass(mixers.load(name), TorchRNN)  # in `RNN` they have the names of `nn.GRU`
    for door in ("SequenceModel", "instance", *(() if of_torch else ("RNN",))):
        carries = bool(mixers.load(name).carries)  # what only the first layer makes
        for layer, mixer in enumerate(DOORS[door](name)):
            assert_alike(mixer, expected_of(name, door, layer if carries else 0))


@pytest.mark.sampled
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_draws_each_mixer_anew_as_the_mixer_draws_itself(name, bidirectional):
    layer = RNN(name, WIDTH, WIDTH, glu=False, bidirectional=bidirectional)
    torch.manual_seed(7)
    for mixer in layer._mixers():
        if hasattr(mixer, "reset_parameters"):
            mixer.reset_parameters()
    drawn = {key: value.clone() for key, value in layer.state_dict().items()}
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(torch.nan)
    torch.manual_seed(7)
    layer.reset_parameters()
    torch.testing.assert_close(layer.state_dict(), drawn, rtol=0, atol=0)


def test_maps_and_gates_around_a_mixer_are_drawn_anew():
    layer = RNN("lru", 2, WIDTH, 2, proj_size=3, bidirectional=True)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(torch.nan)
    layer.reset_parameters()
    assert all(p.isfinite().all() for p in layer.parameters())


def test_there_are_mixers_that_depend_on_their_place():
    assert {"hgrn", "slstm", "ind_rnn", "rwkv7", "transnormer"} <= set(WITH_PLACE)
