"""Wrong calls of functions and constructors say which argument was meant."""

import pytest
import torch

import linrnn
from linrnn import mixers
from linrnn._options.call import checked
from linrnn.cells import cell
from linrnn.errors import (
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    UnknownArgumentError,
    UnknownNameError,
    nearest,
)
from linrnn.generation import generate, generate_text
from linrnn.testing import check_mixer
from linrnn.tokenizers import ByteTokenizer

pytestmark = pytest.mark.unchecked


def model(**options):
    return linrnn.SequenceModel(3, 2, d_model=8, n_layers=1, **options)


def writer():
    return linrnn.SequenceModel(256, 256, encoder="tokens", pool="none", n_layers=1).eval()


CALLS = [
    (lambda: mixers.LRU(8, d_stat=2), UnknownArgumentError, "LRU named 'd_stat'.*mean 'd_state'"),
    (lambda: mixers.GLA(8, num_heads=2), UnknownArgumentError, "mean 'n_heads'"),
    (lambda: mixers.LRU(8, 16), ArgumentTypeError, r"at most 1 \(d_model\), got 2.*d_state="),
    (lambda: mixers.LRU(), ArgumentTypeError, "LRU: d_model must be given, got nothing"),
    (lambda: mixers.GRU(8, bias="no"), ArgumentTypeError, "bias must be True or False, got 'no'"),
    (lambda: model(num_layers=2), UnknownArgumentError, "mean 'n_layers'"),
    (lambda: model(d_state=2), UnknownArgumentError, r"mixer_options=\{'d_state': ...\}"),
    (lambda: linrnn.SequenceModel(3, 2, "lru"), ArgumentTypeError, "others, as in mixer="),
    (lambda: model(bidirectional="no"), ArgumentTypeError, "bidirectional must be True or False"),
    (
        lambda: model(dtype=torch.complex64),
        DTypeError,
        "dtype must .*got torch.complex64",
    ),
    (lambda: model(device="gpu"), DeviceError, "device must be .*got 'gpu'"),
    (lambda: linrnn.RNN(8, 16), ArgumentTypeError, "hidden_size.*got mixer=8, input_size=16"),
    (lambda: linrnn.RNN("lru", 8, 16, d_state=3), UnknownArgumentError, "mixer_options"),
    (lambda: linrnn.RNN("lru", 8, 16, n_layers=3), UnknownArgumentError, "mean 'num_layers'"),
    (lambda: linrnn.fit(model(), [], loss="mse", max_epochs=3), UnknownArgumentError, "'epochs'"),
    (lambda: linrnn.fit(model(), [], loss="mse", lr=0.1), UnknownArgumentError, "mean 'optim'"),
    (lambda: linrnn.fit(model(), []), ArgumentTypeError, "fit: loss must be given"),
    (lambda: linrnn.quantize(model(), bit=8), UnknownArgumentError, "mean 'bits'"),
    (lambda: linrnn.distill(model(), orders=8), UnknownArgumentError, "mean 'order'"),
    (lambda: generate(model(), max_tokens=3), UnknownArgumentError, "mean 'max_new_tokens'"),
    (
        lambda: generate_text(writer(), ByteTokenizer(), "a", temprature=1.0),
        UnknownArgumentError,
        "mean 'temperature'",
    ),
    (lambda: cell(state="h", constants="a"), UnknownArgumentError, "mean 'constant'"),
    (lambda: cell(lambda h, u: (h + u, h)), ArgumentTypeError, r"Name the others, as in state="),
    (lambda: cell(matrix="W"), ArgumentTypeError, "cell: state must be given"),
    (lambda: check_mixer("lru"), ArgumentTypeError, r"Say linrnn.mixers.load\('lru'\)"),
    (lambda: check_mixer(torch.nn.GRU), ArgumentTypeError, "class derived from .*Mixer.* got <cla"),
    (lambda: check_mixer(mixers.LRU(4)), ArgumentTypeError, "make must be a class"),
    (lambda: model(pool=None), UnknownNameError, "mean 'none'"),
    (lambda: model(pool="avg"), UnknownNameError, "mean 'mean'"),
]


@pytest.mark.parametrize(("call", "kind", "words"), CALLS)
def test_a_wrong_call_names_the_argument(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_errors_are_those_of_python():
    with pytest.raises(TypeError):
        mixers.LRU(8, no_such_option=1)
    with pytest.raises(TypeError):
        mixers.LRU()


def test_a_type_error_inside_the_function_stays():
    @checked
    def function(a, *, b: bool = False):
        raise TypeError("from inside")

    with pytest.raises(TypeError, match="from inside") as caught:
        function(1, b=True)
    assert not isinstance(caught.value, ArgumentTypeError)


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("optim.learning_rate", ["optim.lr", "optim.min_lr"], "optim.lr"),
        ("acc", ["accuracy", "mse"], "accuracy"),
        ("num-layers", ["n_layers"], "n_layers"),
        ("xyzzy", ["n_layers"], None),
        (3, ["n_layers"], None),
        (None, ["none"], "none"),
        (None, ["n_layers"], None),
    ],
)
def test_the_nearest_name(name, known, expected):
    assert nearest(name, known) == expected
