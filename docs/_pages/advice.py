"""When to use a mixer: what its choices are good for, its cost beside a GRU, its options."""

import inspect

from _pages import measures
from linrnn import mixers

OPTIONS = {
    "d_state": "size of the state",
    "n_heads": "number of heads",
    "d_key": "size of a key, and so of the memory",
    "expansion": "width of the recurrence",
    "expand": "width of the recurrence",
    "window": "how far it looks back",
    "segment": "length of a segment",
    "order": "number of polynomials",
    "rank": "rank of the memory",
    "r_min": "smallest initial modulus of the eigenvalues",
    "dt_min": "shortest initial time scale",
    "dt_max": "longest initial time scale",
    "t_max": "longest memory at the start",
    "gates": "how the gates start",
    "step_size": "size of a step in time",
}
"""Options that matter most in practice, in the order in which to try them."""

_MOST_OPTIONS = 3


def section(name: str) -> str:
    """The section, or nothing for a mixer that declares no choices."""
    cls = mixers.load(name)
    if cls.choices is None:
        return ""
    uses = "".join(f"- {use}\n" for use in _uses(name))
    limits = "".join(f"- {limit}\n" for limit in _limits(name))
    return f"""## When to use it

{uses}
**Cost beside a GRU:** {_cost(name)}

**Tune first:** {_options(name)}.

{f"**Known limits:**{chr(10)}{chr(10)}{limits}" if limits else ""}"""


def _uses(name: str) -> list[str]:
    """Uses that follow from a mixer's choices."""
    cls = mixers.load(name)
    chosen = cls.choices
    assert chosen is not None
    uses = []
    if chosen.memory == "past":
        uses.append("Exact recall: it can look at every earlier input.")
    elif chosen.memory == "matrix":
        uses.append("Recall of key-value pairs: about as many as a key has numbers, in each head.")
    elif chosen.memory == "network":
        uses.append("Learning in context: it trains a small network while it reads.")
    elif chosen.memory == "window":
        uses.append("Local patterns: it remembers only the last inputs.")
    if "delta" in chosen.transition:
        uses.append("Overwriting: a new value under a key replaces the old one.")
    if chosen.gate in ("input", "state"):
        uses.append("Selecting by content what to remember: its gates depend on the input.")
    elif chosen.memory in ("vector", "systems") and chosen.steps == "linear":
        uses.append("Smooth signals and long, steady memories. It does not select by content.")
    if chosen.steps == "nonlinear" and chosen.memory == "vector":
        uses.append("Counting, and states that change with every input: its steps are nonlinear.")
    if measures.built(name).cost == "parallel":
        uses.append("Long sequences: training is parallel along time.")
    if cls.timed:
        uses.append("Irregular sampling: it reads the times between steps.")
    return uses


def _cost(name: str) -> str:
    """Training and a step in times of the mixer `gru`, at one width, and the state."""
    numbers = measures.state_numbers(name)
    state = "the state grows with the sequence" if numbers is None else f"{numbers:,} numbers"
    state = f"state of {state}" if numbers is not None else state
    own, gru = measures.costs().get(name), measures.costs()["gru"]
    if own is None:
        return f"{state}; times are not measured yet."
    training = _ratio(own["us_per_token"], gru["us_per_token"])
    step = _ratio(own["us_per_step"], gru["us_per_step"])
    return (
        f"training takes {training} times as long, and a streaming step {step} times "
        f"(width {measures.WIDTH}, one core); {state}."
    )


def _ratio(own: str, other: str) -> str:
    return f"{float(own) / float(other):.2g}"


def _options(name: str) -> str:
    """The learning rate, and the options that matter most, with their defaults."""
    parameters = inspect.signature(mixers.load(name)).parameters
    options = [
        f"`{option}` ({OPTIONS[option]}{_default(parameters[option].default)})"
        for option in OPTIONS
        if option in parameters
    ]
    return "; ".join(["the learning rate", *options[:_MOST_OPTIONS]])


def _default(value: object) -> str:
    """Nothing for None, which stands for a value made of others."""
    return "" if value is None else f"; default `{value}`"


def _limits(name: str) -> list[str]:
    """The laws that it declares not to keep, with its reasons."""
    limits: dict[str, list[str]] = {}
    for law, reason in mixers.load(name).declared.items():
        limits.setdefault(reason, []).append(f"`{law}`")
    return [f"{', '.join(laws)}: {reason}." for reason, laws in limits.items()]
