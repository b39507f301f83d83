"""Random ListOps expressions: whole batches at a time, each a function of one 64-bit key.

A node's key gives everything about it and the keys of its children, so a tree follows from its
root whatever else is in the batch. Nodes of one depth of all trees are one array.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.generated import mix

SYMBOLS = ("<pad>", "<unk>", "<eos>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
DIGIT, OPERATOR, CLOSE, EOS = 3, 13, 17, 2  # ids of "0", of "[MIN", of "]", of "<eos>"
_ROUND = 16  # attempts at an expression that are made at once
_GIVE_UP = 20_000  # attempts; a twelfth of them succeed at the published lengths


class Grammar(NamedTuple):
    """Limits of random expressions: depth of the tree, arguments of an operator, kept lengths."""

    max_depth: int
    max_args: int
    min_length: int
    max_length: int


class _Level(NamedTuple):
    """Nodes of one depth; children of one node are neighbours, in the order of their parents."""

    key: np.ndarray
    tree: np.ndarray
    operator: np.ndarray
    """Which nodes are operators."""
    arity: np.ndarray
    """Arity of each operator."""

    def digit(self) -> np.ndarray:
        """The digit at each node, if it is one."""
        return _below(self.key, 10)

    def kind(self) -> np.ndarray:
        """Kinds of the operators: MIN, MAX, MED, SM."""
        kind: np.ndarray = (self.key[self.operator] >> np.uint64(60)).astype(np.int64) & 3
        return kind


def roots(key: int, indices: Sequence[int], grammar: Grammar) -> np.ndarray:
    """The root of each example's first tree of a length that is kept.

    Raises:
        ArgumentError: trees of such a length are too rare.
    """
    of_index = mix(mix(np.array([key], np.uint64)) + np.asarray(indices).astype(np.uint64))
    root = np.zeros(len(of_index), np.uint64)
    missing = np.arange(len(of_index))
    for start in range(0, _GIVE_UP, _ROUND):
        attempt = np.arange(start, start + _ROUND, dtype=np.uint64)
        tried = mix(of_index[missing, None] + attempt)
        lengths = _lengths(tried.ravel(), grammar).reshape(tried.shape)
        fits = (lengths > grammar.min_length) & (lengths < grammar.max_length)
        hit = fits.any(1)
        root[missing[hit]] = tried[hit, fits[hit].argmax(1)]
        missing = missing[~hit]
        if not len(missing):
            return root
    raise ArgumentError(
        f"ListOps: expressions of more than {grammar.min_length} and fewer than "
        f"{grammar.max_length} symbols must not be rare, got none in {_GIVE_UP} attempts. "
        "Choose other lengths, or another max_depth."
    )


def spell(root: np.ndarray, grammar: Grammar) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Symbols, value and length of each root's expression.

    Returns:
        (trees, max_length) ids with one `EOS` after the last and 0 from there on; (trees,)
        values; (trees,) lengths, the `EOS` not counted.
    """
    levels = _grow(root, grammar)
    sizes = _sizes(levels)
    x = np.zeros((len(root), grammar.max_length), np.int64)
    start = np.zeros(len(root), np.int64)
    for level, size, below in zip(levels, sizes, [*sizes[1:], None], strict=True):
        operator = level.operator
        x[level.tree, start] = DIGIT + level.digit()
        x[level.tree[operator], start[operator]] = OPERATOR + level.kind()
        x[level.tree[operator], (start + size - 1)[operator]] = CLOSE
        if below is not None:
            # an argument begins where the one before it ends, the first after its operator
            ends = below.cumsum()
            first = _starts(level.arity)
            offset = start[operator] + 1 - (ends - below)[first]
            start = ends - below + offset.repeat(level.arity)
    x[np.arange(len(root)), sizes[0]] = EOS
    return x, _values(levels), sizes[0]


def _grow(root: np.ndarray, grammar: Grammar) -> list[_Level]:
    """Every node of every tree, depth by depth."""
    key, tree, levels = root, np.arange(len(root)), []
    for depth in range(1, grammar.max_depth + 1):
        level = _level(key, tree, depth, grammar)
        levels.append(level)
        if not len(level.arity):
            break
        key, tree = _children(level)
    return levels


def _level(key: np.ndarray, tree: np.ndarray, depth: int, grammar: Grammar) -> _Level:
    # bits 62 and 63 decide the node, 60 and 61 the operator, the low 32 the number drawn
    operator = (key >> np.uint64(62) == 0) & (depth < grammar.max_depth)
    arity = 2 + _below(key[operator], grammar.max_args - 1)
    return _Level(key, tree, operator, arity)


def _children(level: _Level) -> tuple[np.ndarray, np.ndarray]:
    """Keys and trees of the next depth."""
    nth = np.arange(level.arity.sum()) - _starts(level.arity).repeat(level.arity)
    parent = mix(level.key[level.operator]).repeat(level.arity)
    return mix(parent + nth.astype(np.uint64)), level.tree[level.operator].repeat(level.arity)


def _lengths(root: np.ndarray, grammar: Grammar) -> np.ndarray:
    """Symbols of each root's expression; of one that is too long, at least as many as too many."""
    total = np.ones(len(root), np.int64)  # a leaf for each node so far
    key, tree = root, np.arange(len(root))
    for depth in range(1, grammar.max_depth):
        level = _level(key, tree, depth, grammar)
        # an operator has a symbol more than a leaf, and its arguments
        added = np.bincount(level.tree[level.operator], 1 + level.arity, len(root))
        total += added.astype(np.int64)
        short = (total < grammar.max_length)[tree]
        operator = level.operator & short
        if not operator.any():
            break
        key, tree = _children(
            _Level(key, tree, operator, level.arity[short[level.operator]]),
        )
    return total


def _sizes(levels: list[_Level]) -> list[np.ndarray]:
    """Symbols of the expression below each node."""
    sizes: list[np.ndarray] = []
    for level in reversed(levels):
        size = np.ones(len(level.key), np.int64)
        if len(level.arity):
            size[level.operator] = 2 + np.add.reduceat(sizes[-1], _starts(level.arity))
        sizes.append(size)
    return sizes[::-1]


def _values(levels: list[_Level]) -> np.ndarray:
    """Evaluate each root's expression: (roots,) digits."""
    value = np.zeros(0, np.int64)
    for level in reversed(levels):
        digits = level.digit()
        if len(level.arity):
            digits[level.operator] = _apply(level.kind(), level.arity, value)
        value = digits
    return value


def _apply(kind: np.ndarray, arity: np.ndarray, arguments: np.ndarray) -> np.ndarray:
    """Operators on their arguments, which lie one operator after the other."""
    first = _starts(arity)
    owner = np.arange(len(arity)).repeat(arity)
    ordered = arguments[np.lexsort((arguments, owner))]
    middle = ordered[first + (arity - 1) // 2] + ordered[first + arity // 2]
    choices = (
        ordered[first],
        ordered[first + arity - 1],
        middle // 2,
        np.add.reduceat(arguments, first) % 10,
    )
    return np.choose(kind, choices)


def _starts(arity: np.ndarray) -> np.ndarray:
    """Where each operator's arguments begin."""
    starts: np.ndarray = arity.cumsum() - arity
    return starts


def _below(key: np.ndarray, n: int) -> np.ndarray:
    """The low 32 bits of a key as an integer of 0..n-1."""
    scaled = ((key & np.uint64(0xFFFFFFFF)) * np.uint64(n)) >> np.uint64(32)
    return scaled.astype(np.int64)
