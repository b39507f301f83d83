"""Numbers that README.md and the docs quote are those of results/ and benchmarks/."""

import csv
import re

import pytest

from linrnn import mixers


class Pages:
    """Numbers of the tables of pages, by the beginning of a row's first cell."""

    def __init__(self, root):
        self.root = root

    def of(self, page, row, table="table-1"):
        """The first number of every further cell."""
        return self._numbers(self.cells(page, row, table), page)

    def cells(self, page, row, table="table-1"):
        """The cells as they are printed."""
        path = self.root / "results" / page / f"{table}.csv"
        rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        return next(cells for cells in rows if cells[0] == row)

    def timed(self, page, row):
        """The same of a page of benchmarks/results."""
        path = self.root / "benchmarks" / "results" / f"{page}.md"
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return self._numbers(next(cells for cells in rows if cells[0] == row), path)

    @staticmethod
    def _numbers(cells, path):
        found = [re.search(r"[-+]?\d[\d.]*", cell.replace(",", "")) for cell in cells[1:]]
        assert any(found), path
        return [float(number[0]) for number in found if number]


def ends(numbers, figures=2):
    """From the least to the most, in so many figures."""
    return " to ".join(f"{float(f'{x:.{figures}g}'):g}" for x in (min(numbers), max(numbers)))


def first_picture(pages):
    loop, fused = (pages.of("minrnn-runtime-cpu", f"minGRU against GRU, {kind}", "table-2")
                   for kind in ("loop", "fused"))  # fmt: skip
    return (
        f"minGRU takes {ends(loop)} times less than a loop over GRU cells, and {ends(fused)} times "
        "less than PyTorch's fused GRU"
    )


def speed(pages):
    def times(one, other):
        return pages.timed("layers-cpu", f"linrnn {one} against {other}")[2:]

    return (
        f"`mingru` was {ends(times('mingru', 'nn.LSTM'))} times as fast as `nn.LSTM` and "
        f"{ends(times('mingru', 'nn.GRU'))} times as fast as `nn.GRU`. `lru` was "
        f"{ends(times('lru', 's5-pytorch'))} times as fast as s5-pytorch, and `mamba` "
        f"{times('mamba', 'mambapy')[0]:.0f} times as fast as mambapy at 1,024 steps"
    )


def streaming(pages):
    text = (pages.root / "benchmarks" / "results" / "layers-cpu.md").read_text(encoding="utf-8")
    table = text.partition("one step of 6 layers")[2]
    took = {
        name: re.search(rf"\| linrnn {name} \| \d+ \| ([\d.]+) ", table)[1]
        for name in ("mingru", "lru", "mamba")
    }
    return (
        f"A streaming step of six layers took {took['mingru']} (`mingru`), {took['lru']} (`lru`) "
        f"and {took['mamba']} (`mamba`) of the time of transformers' Mamba"
    )


def decoding(pages):
    rows = [("RWKV-4", "transformers RWKV"), ("Mamba", "transformers Mamba"), ("Mamba", "mambapy")]

    def times(size, column):
        names = [f"{size}, float32: linrnn {one} against {other}" for one, other in rows]
        return ends([pages.timed("decode-cpu", name)[column] for name in names])

    return (
        f"wrote {times('10M', 0)} times as fast as `transformers` and mambapy and read a prompt "
        f"{times('10M', -1)} times as fast. With 130 million, where reading the weights from "
        f"memory is nearly all there is, they wrote {times('130M', 0)} times as fast"
    )


def selective_copying(pages):
    minigru, s4d, lru = (
        round(pages.of("minrnn-table-2-cpu", name)[at])
        for name, at in (("minGRU", 1), ("S4, no gate", 1), ("LRU", 0))
    )
    return (
        f"minGRU copies 8 tokens out of 256 blanks with {minigru} % right, where S4D and the LRU, "
        f"whose decays do not follow the input, get {s4d} % and {lru} %"
    )


def depth(pages):
    one, two, three = (
        pages.cells("minrnn-table-1-cpu", f"minGRU, {n} layer{'s' * (n > 1)}")[2] for n in (1, 2, 3)
    )
    return f"of 16 tokens one, two and three layers get {one}, {two} and {three} %"


def long_range(pages):
    plain = pages.of("lru-table-4-cpu", "LRU", "table-2")
    return f"an LRU trains {ends(plain)} times as fast as PyTorch's tanh RNN"


def recipes_of_kinds(pages):
    s4d, lru = (
        pages.of("minrnn-table-2-cpu", "S4, no gate")[1],
        pages.of("minrnn-table-2-cpu", "LRU")[0],
    )
    return f"S4D reached {s4d:g} % and of the LRU {lru:g} %"


def recipes_of_depths(pages):
    means = [
        pages.of("minrnn-table-1-cpu", f"minGRU, {n} layer{'s' * (n > 1)}")[1] for n in (1, 2, 3)
    ]
    return "the order of the means is the published one, {:g}, {:g} and {:g} %".format(*means)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("README.md", first_picture),
        ("docs/layers.md", speed),
        ("docs/layers.md", streaming),
        ("docs/language-models.md", decoding),
        ("docs/reproductions.md", selective_copying),
        ("docs/reproductions.md", depth),
        ("docs/reproductions.md", long_range),
        ("results/recipes/README.md", recipes_of_kinds),
        ("results/recipes/README.md", recipes_of_depths),
    ],
)
def test_quoted_numbers_are_those_of_their_page(pytestconfig, document, sentence):
    text = (pytestconfig.rootpath / document).read_text(encoding="utf-8")
    assert sentence(Pages(pytestconfig.rootpath)) in " ".join(text.split())


def test_the_number_of_mixers_is_not_overtaken(pytestconfig):
    text = (pytestconfig.rootpath / "docs" / "index.md").read_text(encoding="utf-8")
    assert "Over a hundred published sequence models" in text
    assert len(mixers.names()) > 100
