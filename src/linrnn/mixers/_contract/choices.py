"""Design choices of a mixer, in a closed vocabulary in which systems are compared."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from linrnn.errors import check_in

Transition = Literal[
    "none", "identity", "scalar", "diagonal", "complex diagonal", "low rank", "delta",
    "decay and delta", "local", "dense", "orthogonal", "flow", "attention", "gradient",
]  # fmt: skip
Gate = Literal["none", "fixed", "learned", "input", "state"]
Memory = Literal["vector", "systems", "matrix", "network", "window", "past"]
Normaliser = Literal["none", "scaled", "convex", "sum", "softmax", "norm"]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How one system differs from another: the choices of its default options.

    Args:
        transition: what becomes of the memory from one step to the next.
        gate: what decides how much of it stays.
        memory: where the past is kept.
        normaliser: what keeps numbers of one size, however long a sequence is.
        steps: whether a state is an affine function of the one before, given the input; "staged"
            where it is, given other states of the same step that are so in their turn.
        output: whether what is read is multiplied by a gate.

    Raises:
        UnknownNameError: a word that is none of those of `WORDS`.

    Example:
        >>> from linrnn.mixers import SLRU, MinGRU
        >>> MinGRU.choices.differences(SLRU.choices)
        {'gate': ('input', 'learned'), 'normaliser': ('convex', 'scaled')}
    """

    transition: Transition
    gate: Gate
    memory: Memory
    normaliser: Normaliser = "none"
    steps: Literal["linear", "staged", "nonlinear"] = "linear"
    output: Literal["plain", "gated"] = "plain"

    def __post_init__(self) -> None:
        for field in fields(self):
            allowed = get_args(field.type)
            check_in("Choices", field.name, getattr(self, field.name), allowed)

    def differences(self, other: "Choices") -> dict[str, tuple[str, str]]:
        """Pairs of the values of this and ``other``, where the two differ, by name."""
        names = [field.name for field in fields(self)]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


WORDS: dict[str, dict[str, str]] = {
    "transition": {
        "none": "inputs are kept as they came",
        "identity": "the memory is kept whole, and added to",
        "scalar": "all of a head's memory times one number",
        "diagonal": "each channel times its own real number",
        "complex diagonal": "each channel times a complex number: it decays and turns",
        "low rank": "a diagonal matrix and one of low rank",
        "delta": "what is stored under a key is replaced: I - beta k k^T",
        "decay and delta": "the memory decays, and what is stored under a key is replaced",
        "local": "channels that lie side by side mix",
        "dense": "a full matrix, or one in full blocks",
        "orthogonal": "a matrix that keeps lengths, orthogonal or unitary",
        "flow": "the state follows a differential equation for the time of a step",
        "attention": "the memory looks at what was read, and at itself, and becomes what it finds",
        "gradient": "the memory is weights, which take a step of descent of a loss",
    },
    "gate": {
        "none": "nothing: all of it stays",
        "fixed": "constants that are not trained",
        "learned": "parameters, the same at every step",
        "input": "the input",
        "state": "the input and the state before",
    },
    "memory": {
        "vector": "numbers side by side, which every channel writes and reads",
        "systems": "a vector for each channel, which reads that channel alone",
        "matrix": "keys by values, in each head",
        "network": "the weights of a small network, in each head",
        "window": "the last inputs, a fixed number of them",
        "past": "all inputs: it grows",
    },
    "normaliser": {
        "none": "nothing",
        "scaled": "inputs are scaled so that the state keeps its variance",
        "convex": "what stays and what is written have weights that add up to one",
        "sum": "what is read is divided by the sum of its weights",
        "softmax": "weights are exponentials, and divided by their sum",
        "norm": "what is read passes a norm",
    },
    "steps": {
        "linear": "a state is an affine function of the one before, given the input",
        "staged": "as linear, given other states of the step, which are so in their turn",
        "nonlinear": "a state is any function of the one before",
    },
    "output": {
        "plain": "what is read is mapped, or as it is",
        "gated": "what is read is multiplied by a gate",
    },
}
"""Every word of every choice, and what it says."""
