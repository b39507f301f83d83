"""The LSTM whose forget gate another gate refines, as a cell."""

from typing import Any

import torch
import torch.nn.functional as F

from linrnn.cells import Cell


def _ur_lstm(
    h: Any, c: Any, xr: Any, xf: Any, xg: Any, xo: Any, Wr: Any, Wf: Any, Wg: Any, Wo: Any
) -> tuple[Any, Any]:
    """``g = 2 r f + (1 - 2 r) f^2`` keeps, ``1 - g`` writes; written so that neither cancels."""
    r, f = xr + F.linear(h, Wr), xf + F.linear(h, Wf)
    stay, move, less = torch.sigmoid(f), torch.sigmoid(-f), torch.sigmoid(-r)
    keep = stay * (stay + 2 * torch.sigmoid(r) * move)
    write = move * (move + 2 * less * stay)
    c = keep * c + write * torch.tanh(xg + F.linear(h, Wg))
    h = torch.sigmoid(xo + F.linear(h, Wo)) * torch.tanh(c)
    return h, (h, c)


ur_lstm = Cell(_ur_lstm, state="h c", matrix="Wr Wf Wg Wo", name="ur_lstm")
"""Where the LSTM has its input gate, which is tied to the other here, stands the refine gate."""
