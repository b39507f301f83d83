"""What seeds say together of a claim."""

from collections.abc import Sequence

RULE = (
    "a claim is confirmed where it holds with every seed, contradicted where it holds with none, "
    "and otherwise undecided."
)


def verdict(held: Sequence[bool]) -> str:
    """One word for a claim, by `RULE`; without a seed nothing is decided.

    Args:
        held: whether the claim holds, for each seed.

    Example:
        >>> verdict([True, True]), verdict([True, False]), verdict([False, False]), verdict([])
        ('confirmed', 'undecided', 'contradicted', 'undecided')
    """
    if not held or any(held) != all(held):
        return "undecided"
    return "confirmed" if held[0] else "contradicted"
