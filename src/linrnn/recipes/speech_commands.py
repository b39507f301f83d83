"""S5 on Speech Commands."""

from linrnn.recipes import _s5
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six S5 layers on the task `speech_commands`, 35 words, as in the public scripts."""
    return _s5.paper("speech_commands")
