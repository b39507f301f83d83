"""A language model in the middle of a text that goes on learning: the next token is the target."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn._process.turns import in_turn
from linrnn.backbone import SequenceModel
from linrnn.generation import TokenIds, TokenStream
from linrnn.learn._parts.base import Learner
from linrnn.learn._parts.session import LearningSession
from linrnn.streaming.input import as_tokens, check_finite, check_tokens
from linrnn.typing import Float


class LearningText(LearningSession):
    """A `LearningSession` of tokens, each of which is what was to be said after all before it.

    What `linrnn.generation.TokenStream` is for a model that stays as it is.

    Args:
        model: a language model, as of `linrnn.generation.TokenStream`, with a state of fixed size.
        learner, optimizer, every, clip, seed: as of `LearningSession`.

    Attributes:
        last: the last token, which was not given to the model yet; None before the first one.

    Raises:
        ArgumentError: as `LearningSession`, or the model has no output for each token.

    Example:
        >>> from linrnn import learn
        >>> model = SequenceModel(5, 5, d_model=8, n_layers=1, pool="none", encoder="tokens").eval()
        >>> adam = torch.optim.Adam(model.parameters(), 1e-2)
        >>> text = LearningText(model, learn.build("tbptt"), adam)
        >>> before = float(text.surprise([0, 1, 2, 3] * 10).mean())
        >>> all(len(text.surprise([0, 1, 2, 3] * 10)) for _ in range(30))
        True
        >>> float(text.surprise([0, 1, 2, 3] * 10).mean()) < before / 2
        True
    """

    def __init__(
        self,
        model: SequenceModel,
        learner: Learner,
        optimizer: torch.optim.Optimizer,
        *,
        every: int = 64,
        clip: float = 1.0,
        seed: int = 0,
    ) -> None:
        TokenStream(model)  # says what a model of something else lacks
        super().__init__(model, learner, _next_token, optimizer, every=every, clip=clip, seed=seed)
        self.last: int | None = None

    @in_turn
    def surprise(self, tokens: TokenIds) -> Float[Tensor, " time"]:
        """Read tokens, say of each how unlikely it was in bits, and learn from them.

        The very first token of a stream follows on nothing: it counts as drawn from all evenly.

        Raises:
            ArgumentError: a token outside the vocabulary, with its position.
            NonFiniteError: see `LearningSession`.
        """
        ids = as_tokens("LearningText", self.model, tokens)
        if not len(ids):
            return torch.empty(0)
        nats, target = [], ids
        context = [] if self.last is None else [self.last]
        if self.last is None:
            nats, target = [torch.tensor([math.log(self.model.d_output)])], ids[1:]
        x = torch.cat([ids.new_tensor(context), ids[:-1]])
        with self._all_or_nothing():
            for y, labels in zip(
                self._read(x, target, None), target.split(self.every), strict=True
            ):
                nats.append(F.cross_entropy(y[0].float(), labels, reduction="none").cpu())
                check_finite("LearningText", nats[-1], ())
        self.last = int(ids[-1])
        return torch.cat(nats) / math.log(2)

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """All of it, as `LearningSession` has it, and the last token."""
        return {**super().state_dict(), "last": self.last}

    @in_turn
    def load_state_dict(self, found: Any) -> None:
        """Go on where `state_dict` was asked."""
        last = found["last"]
        if last is not None:
            check_tokens("LearningText.load_state_dict", self.model, torch.as_tensor(last))
        super().load_state_dict(found)
        self.last = last


def _next_token(y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(y.flatten(0, 1), target.flatten())
