"""Lines that are told apart: by colour for those who lack a cone, by dash and marker in grey."""

import itertools

import numpy as np
import pytest

from linrnn import mixers
from linrnn.train import styles as looks

# G. M. Machado, M. M. Oliveira and L. A. F. Fernandes, A Physiologically-based Model for Simulation
# of Color Vision Deficiency, IEEE TVCG 15(6), 2009: Table 1, severity 1.0, on linear RGB
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]
    ),
}  # fmt: skip
# B. Ottosson, A perceptual color space for image processing, 2020: OKLab from linear sRGB
CONES = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
     [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
LAB = np.array(
    [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
     [0.0259040371, 0.7827717662, -0.8086757660]]
)  # fmt: skip
PAGES = [
    ["minGRU", "minGRU, log space", "minLSTM", "minLSTM, log space", "Mamba", "GRU, fused",
     "GRU, loop", "LSTM, fused", "LSTM, loop"],
    ["lru", "mingru", "gru", "lstm", "mamba", "s4d"],
    ["GLA", "RetNet", "RWKV-6", "mLSTM", "DeltaNet", "Mamba-2"],
    [f"layer {i}" for i in range(1, 13)],
    ["LRU", "layer 1", "layer 2"],
    mixers.names()[:108],  # so many can be told apart
]  # fmt: skip


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    return LAB @ np.cbrt(CONES @ np.clip(rgb, 0, 1))


def least_distance(one, other):
    """In OKLab, for the sight that sees the least of it."""
    return min(
        np.linalg.norm(oklab(m @ linear(one)) - oklab(m @ linear(other))) for m in SIGHTS.values()
    )


def in_grey(look):
    return look["linestyle"], look["marker"], look["markerfacecolor"] == "white"


def test_the_distance_is_that_of_oklab():
    # of the page cited: white has L = 1, a = b = 0
    assert oklab(linear("#ffffff")) == pytest.approx([1, 0, 0], abs=1e-3)
    assert oklab(linear("#000000")) == pytest.approx([0, 0, 0], abs=1e-9)
    # red and green of one lightness are near for those who lack a cone, and far for others
    assert least_distance("#b04a00", "#7a7a00") < 0.08


def test_any_two_colours_differ_for_every_sight():
    pairs = itertools.combinations(looks.COLOURS, 2)
    assert min(least_distance(one, other) for one, other in pairs) > 0.2


@pytest.mark.parametrize("labels", PAGES, ids=lambda labels: labels[0])
def test_any_two_lines_of_a_figure_differ_in_grey(labels):
    found = looks.styles(labels)
    assert list(found) == labels
    assert len({in_grey(look) for look in found.values()}) == len(labels)


def test_lines_with_one_dash_have_no_two_markers_like_a_circle():
    rates = ("3e-05", "0.0001", "0.0003", "0.001", "0.003")
    labels = [f"{name}, learning rate {rate}" for name in ("linear", "tanh") for rate in rates]
    found = looks.styles(labels).values()
    seen = [(dash, "o" if m in "oph8" else m, hollow) for dash, m, hollow in map(in_grey, found)]
    assert len(set(seen)) == len(labels)
    assert len({look["color"] for look in found}) == 2


@pytest.mark.parametrize(
    "systems",
    [
        ["lru", "mingru", "mamba", "s4d", "gru", "attention"],
        ["minGRU", "minLSTM", "Mamba", "Transformer", "GRU", "LSTM"],
        ["GLA", "RetNet", "RWKV-6", "mLSTM", "DeltaNet", "Mamba-2"],
    ],
    ids=lambda systems: systems[0],
)
def test_systems_that_are_compared_have_colours_of_their_own(systems):
    found = looks.styles(systems)
    assert len({look["color"] for look in found.values()}) == 6


def test_cells_of_one_figure_have_colours_of_their_own():
    found = looks.styles(["CfC", "LSTM", "tanh RNN"])
    assert len({look["color"] for look in found.values()}) == 3


def test_state_spaces_of_one_figure_are_told_apart():
    found = looks.styles(["S4", "S4D", "S5", "DSS", "LRU", "MEGA"])
    shapes = {
        (dash, "o" if m in "oph8" else m, hollow)
        for dash, m, hollow in map(in_grey, found.values())
    }
    assert len(shapes) == 6
    assert found["S4"]["color"] != found["LRU"]["color"]


def test_lines_that_are_no_systems_have_the_colours_a_figure_lacks():
    found = looks.styles(["minGRU", "one", "two", "three", "four", "five"])
    assert len({look["color"] for look in found.values()}) == 6


def test_every_mixer_has_a_look_that_no_page_changes():
    alone = {name: looks.styles([name])[name] for name in mixers.names()}
    places = {name: looks.place_of(name) for name in mixers.names()}
    assert None not in places.values()
    apart = list({place: name for name, place in places.items()}.values())
    assert len(apart) > 60  # of those at one place, one
    assert looks.styles(apart[::-1]) == {name: alone[name] for name in apart}
    assert looks.styles(["layer 1", "gru", "lru"])["lru"] == alone["lru"]


COMPARED = [
    "lru", "mingru", "minlstm", "mamba", "s4d", "gru", "attention", "lstm", "hgrn2", "s5",
    "rwkv4", "gla", "delta_net", "gateloop", "retnet", "lem", "rwkv6", "linear_attention",
    "gated_delta_net", "tanh_rnn", "h3", "mega", "linear_rnn", "co_rnn", "hyena", "relu_rnn",
    "exp_rnn", "mlstm", "slstm", "mamba2", "s4", "dss",
]  # fmt: skip


def test_systems_that_are_compared_most_often_have_looks_of_their_own():
    assert len({looks.place_of(name) for name in COMPARED}) == len(COMPARED)


def test_a_mixer_that_is_new_has_a_look_by_its_name(monkeypatch):
    before = looks.place_of("lru")
    monkeypatch.setattr(mixers, "names", lambda: ["brand_new", "lru"])
    place = looks.place_of("brand-new, wide")
    assert place is not None
    assert place == looks.place_of("BrandNew")
    assert looks.place_of("brand") is None
    assert looks.place_of("lru") == before


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("minGRU", "mingru"),
        ("S4D", "s4d"),
        ("coRNN, steps of 1/T", "co_rnn"),
        ("Tanh RNN", "tanh_rnn"),
        ("lru:r_min=0.9", "lru"),
        ("RWKV-6", "rwkv6"),
        ("lru seed 3", "lru"),
        ("S4 at 0.01", "s4"),
        ("decay by head, fixed", "retnet"),
        ("Transformer", "attention"),
    ],
)
def test_a_system_is_known_by_any_of_its_names(label, name):
    assert looks.styles([label])[label] == looks.styles([name])[name]


def test_what_is_no_system_has_no_place():
    assert [looks.place_of(x) for x in ("layer 1", "kept in training", "", "lru,gru")][:3] == [
        None,
        None,
        None,
    ]


def test_a_second_line_of_a_system_has_its_colour_alone():
    one, two = looks.styles(["GRU, loop", "GRU, fused"]).values()
    assert one["color"] == two["color"]
    assert in_grey(one) != in_grey(two)


def test_more_lines_than_looks_are_drawn_all_the_same():
    labels = [f"line {i}" for i in range(200)]
    assert set(looks.styles(labels)) == set(labels)
    assert set(looks.dense_styles(["lru", *labels])) == {"lru", *labels}
