"""When to use a mixer: what its design is good for, its cost beside a GRU, its options."""

import inspect
from functools import cache

from _pages import measures
from linrnn import atlas, mixers

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
    "t_max": "longest initial memory",
    "gates": "initial gates",
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
{_measured(name)}**Cost beside a GRU:** {_cost(name)}

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


def _measured(name: str) -> str:
    """Results of a small model of it in the atlas, and where it failed; empty if not measured."""
    figures = _figures().get(name, {})
    done = [(a, figures[a.name]) for a in atlas.ABILITIES if a.name in figures]
    learned = [
        f"{a.name.replace('-', ' ')} ({_reach(str(f))} {a.dial})"
        for a, f in done
        if f.middle.side != "below"
    ]
    failed = [a.name.replace("-", " ") for a, f in done if f.middle.side == "below"]
    if not done:
        return ""
    seeds = min(f.seeds for _, f in done)
    text = (
        f"**Measured** (small models, {seeds} seed{'s' * (seeds > 1)}, [atlas](../atlas-map.md)): "
    )
    text += ", ".join(learned) + "." if learned else "no task was learned."
    text += f" Failed: {', '.join(failed)}." if failed else ""
    return f"{text}\n\n"


@cache
def _figures() -> dict[str, dict[str, atlas.Figure]]:
    return atlas.figures(tuple(atlas.measured()))


def _reach(figure: str) -> str:
    """A figure of the atlas in words."""
    return f"more than {figure[1:].strip()}" if figure.startswith(">") else f"up to {figure}"


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
    """The contract tests that it declares it cannot pass, with the reasons."""
    limits: dict[str, list[str]] = {}
    for law, reason in mixers.load(name).declared.items():
        limits.setdefault(reason, []).append(f"`{law}`")
    return [f"{', '.join(laws)}: {reason}." for reason, laws in limits.items()]
