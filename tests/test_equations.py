"""The notation of docstrings is typeset: formulas, sentences, and no number lost."""

import importlib
import inspect
import re
import sys
from html import unescape
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest

from linrnn import mixers
from package_modules import MODULES

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def typeset():
    """The modules of docs/ that do it."""
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("equations"), importlib.import_module("tex")
    sys.path.remove(str(DOCS))


def equations_of(module):
    """The section of everything public in a module, by name."""
    for name, member in vars(importlib.import_module(module)).items():
        if getattr(member, "__module__", None) != module or not callable(member):
            continue
        text = f"{inspect.getdoc(member)}\n"
        found = re.search(r"^Equation:{1,2}\n((?:[ ].*\n|\n)+)", text, re.MULTILINE)
        if found:
            yield name, dedent(found[1]).strip("\n")


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("h_t = lam * h_{t-1}", r"h_{t} = \lambda \odot h_{t - 1}"),
        ("a / b c", r"\frac{a}{b} c"),
        ("q . k / d", r"\frac{q \cdot k}{d}"),
        ("a / (2 b)", r"\frac{a}{2 b}"),
        ("(a + b) (a - b)", r"\left(a + b\right) \left(a - b\right)"),
        ("x^k_t", r"x^{k}_{t}"),
        ("k_t v_t^T", r"k_{t} v_{t}^{\top}"),
        ("|lam| < 1", r"\left|\lambda\right| < 1"),
        ("|u|^T", r"\left|u\right|^{T}"),
        ("h in R^{d_a x d_b}", r"h \in \mathbb{R}^{d_{a} \times d_{b}}"),
        ("in (0, 1)", r"\in \left(0,1\right)"),
        ("h~_t", r"\tilde{h}_{t}"),
        ("x <- y", r"x \leftarrow y"),
        ("sqrt(1 - a^2)", r"\sqrt{1 - a^{2}}"),
        ("3e-8", r"3\cdot10^{-8}"),
        ("step_size", r"\mathtt{step\_size}"),
        ("sum_{s <= t} w_ts", r"\sum\limits_{s \le t} w_{ts}"),
        ("d_state^(-1/2)", r"d_{\text{state}}^{-1 / 2}"),
        ("B'_{t-1}^T", r"{B'_{t - 1}}^{\top}"),
        ("y1_{t-1}", r"y_{1,t - 1}"),
        ("e_t^tau_t", r"e_{t}^{\tau_{t}}"),
    ],
)
def test_notation_becomes_tex(typeset, plain, expected):
    assert re.sub(r"\s+", "", typeset[1].tex(plain)) == re.sub(r"\s+", "", expected)


@pytest.mark.parametrize("broken", ["h_t = (a", "h_t = a)", "|a", "a / ", "a ^", "{a", "§"])
def test_what_is_no_formula_is_an_error(typeset, broken):
    with pytest.raises(typeset[1].NotUnderstoodError):
        typeset[1].tex(broken)


@pytest.mark.parametrize("name", mixers.names())
def test_every_equation_of_a_mixer_is_typeset(typeset, name):
    cls = mixers.load(name)
    ((_, body),) = (item for item in equations_of(cls.__module__) if item[0] == cls.__name__)
    html = typeset[0].html(body)
    assert html.count('class="row"') > 0
    assert said(html) == said(body)
    assert [formula for formula in formulas(html) if doubled(formula)] == []


def test_every_other_equation_is_typeset(typeset):
    changed = []
    for module in MODULES:
        for name, body in equations_of(module):
            html = typeset[0].html(body)
            if said(html) != said(body) or any(map(doubled, formulas(html))):
                changed.append(f"{module}.{name}")
    assert changed == []


def formulas(html):
    """The TeX of each formula on a page."""
    return [unescape(tex) for tex in re.findall(r'<span class="tex">\\\((.*?)\\\)</span>', html)]


TEX = re.compile(r"\\(?:left|right)\\?.|\\[A-Za-z]+|\\.|\S")


def doubled(formula):
    """Whether a symbol has two subscripts or two superscripts, which TeX sets as an error.

    A prime is a superscript, which others may join at once: y'' and S'^T.
    """
    levels = [(set(), False)]  # of each open brace: the last symbol's scripts, and if one follows
    for before, token in pairwise(["", *TEX.findall(formula)]):
        scripts, follows = levels[-1]
        if token in ("_", "^", "'"):
            kind = "^" if token == "'" else token
            if kind in scripts and before != "'":
                return True
            levels[-1] = scripts | {kind}, token != "'"
        elif token == "{":
            levels.append((set(), False))
        else:
            if token == "}":
                levels.pop()
                scripts, follows = levels[-1]
            levels[-1] = (scripts if follows else set()), False
    return False


@pytest.mark.parametrize(
    ("formula", "wrong"),
    [
        (r"B'_{t}^{\top}", True),
        (r"{B'_{t}}^{\top}", False),
        (r"y''_{t}", False),
        (r"S'^{\top}", False),
        (r"y_{1}_{t}", True),
        (r"y_{1} x_{t}", False),
        (r"x^{k}_{t}", False),
        (r"a_{b_{c}^{2}}^{d}", False),
        (r"\left(a_{1}\right)_{2}", False),
        (r"e_{t}^{\tau}_{t}", True),
    ],
)
def test_two_scripts_of_a_kind_are_noticed(formula, wrong):
    assert doubled(formula) == wrong


def said(text):
    """The digits of a text in order: no number is lost, added or moved on the way."""
    text = re.sub(r"</?(?:section|div|span|p|code)[^>]*>", "", text)
    text = re.sub(r"\d[\d.]*e-?\d+|(\d+\\cdot)?10\^\{-?\d+\}", "", text)  # 1e-6 in either form
    return re.sub(r"\D", "", text)


def test_a_sentence_keeps_its_words_and_its_formulas_are_set(typeset):
    html = typeset[0].inline("Initially A is N(0, 1 / d), a matrix in R^{d x d}; see `torch.nn`.")
    words = re.sub(r'<span class="tex">.*?</span>', "#", html)
    assert words == "Initially # is #, a matrix in #; see <code>torch.nn</code>."
    assert r"\mathbb{R}" in html


def test_a_line_that_was_full_goes_on_and_one_that_was_not_stands_alone(typeset):
    full = "The state is a mean of what was read before, and the weights of it are positive and so"
    assert typeset[0].blocks(f"{full}\nsumming to one.\nIt is short.") == [
        ("prose", f"{full} summing to one."),
        ("prose", "It is short."),
    ]


def test_a_label_and_a_remark_have_columns_of_their_own(typeset):
    row = typeset[0].html('"zoh"   a = exp(dt A)      for each channel')
    assert '<span class="label">zoh</span>' in row
    assert '<span class="also remark">for each channel</span>' in row
    assert row.count('class="tex"') == 2  # both sides of the sign


def test_what_is_not_understood_stays_as_it_is(typeset):
    docstrings = importlib.import_module("docstrings")
    assert docstrings.typeset("h_t = (a") == "```text\nh_t = (a\n```"


def test_spaces_before_a_sign_part_no_columns(typeset):
    assert typeset[0].blocks("y      = a x\nh_t    = y") == [
        ("formula", "y = a x"),
        ("formula", "h_t = y"),
    ]
