"""Shared by layers that attend to a fixed number of slots, each with a key and a value."""

from linrnn.state_spec import Part, real


def slots_spec(n_heads: int, slots: int, d_key: int, d_value: int) -> dict[str, Part]:
    """The slots of every head: their keys, one a column, and their values, one a row."""
    keys = real(n_heads=n_heads, d_key=d_key, slots=slots)
    return {"keys": keys, "values": real(n_heads=n_heads, slots=slots, d_value=d_value)}
