"""Gradients found by a second forward pass, `torch.utils.checkpoint`, are those of the first."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from linrnn.errors import LinrnnError
from linrnn.testing._mixer_runs import MakeMixer, busy_state, in_each_form, results, signal
from linrnn.testing._tolerance import BrokenPropertyError, check_true

_ROWS, _TIME = 2, 9


def same_when_checkpointed(make: MakeMixer) -> None:
    """Outputs, states and all gradients of every form in training, noise included, to the bit.

    Raises:
        BrokenPropertyError: they differ, or the backward pass takes out twice what it kept, which
            is computed again once.
    """
    for form, mixer in in_each_form(make):
        x, state = signal(_ROWS, _TIME, mixer.d_model), busy_state(mixer, _ROWS)
        mixer.train()
        torch.manual_seed(0)
        expected = results(mixer, mixer, x, state)
        torch.manual_seed(0)
        try:
            checkpointed = results(partial(checkpoint, mixer, use_reentrant=False), mixer, x, state)
        except LinrnnError:
            raise
        except RuntimeError as error:
            raise BrokenPropertyError(f"form {form!r}, checkpointed: {error}") from error
        for name, value in expected.items():
            same = name in checkpointed and torch.equal(checkpointed[name], value)
            check_true(f"form {form!r}, checkpointed: {name} differs", same)
