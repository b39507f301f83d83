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
        "none": "inputs are stored unchanged",
        "identity": "the memory is unchanged, and inputs are added",
        "scalar": "the memory of a head is multiplied by one number",
        "diagonal": "each channel is multiplied by its own real number",
        "complex diagonal": "each channel is multiplied by a complex number: it decays and rotates",
        "low rank": "a diagonal matrix plus one of low rank",
        "delta": "the value stored under a key is replaced: I - beta k k^T",
        "decay and delta": "the memory decays, and the value stored under a key is replaced",
        "local": "neighbouring channels mix",
        "dense": "a full matrix, or full blocks",
        "orthogonal": "an orthogonal or unitary matrix, which preserves norms",
        "flow": "the state follows a differential equation during a step",
        "attention": "the memory attends to the input and to itself, and is replaced by the result",
        "gradient": "the memory is weights, updated by gradient descent on a loss",
    },
    "gate": {
        "none": "nothing: the memory does not decay",
        "fixed": "constants that are not trained",
        "learned": "parameters, the same at every step",
        "input": "the input",
        "state": "the input and the previous state",
    },
    "memory": {
        "vector": "one vector, written and read by all channels",
        "systems": "one vector per channel, which reads only that channel",
        "matrix": "a matrix of keys by values in each head",
        "network": "the weights of a small network in each head",
        "window": "a fixed number of the last inputs",
        "past": "all inputs: the memory grows",
    },
    "normaliser": {
        "none": "nothing",
        "scaled": "inputs are scaled so that the state keeps its variance",
        "convex": "the weights of memory and input add up to one",
        "sum": "the output is divided by the sum of its weights",
        "softmax": "weights are exponentials divided by their sum",
        "norm": "the output is normalised by a norm layer",
    },
    "steps": {
        "linear": "a state is an affine function of the previous one, given the input",
        "staged": "as linear, given other states of the same step, which are linear too",
        "nonlinear": "a state is any function of the previous one",
    },
    "output": {
        "plain": "the read-out is used directly, or after a linear map",
        "gated": "the read-out is multiplied by a gate",
    },
}
"""Every word of every choice, and what it says."""
