"""S5 and the package s5-pytorch, which keeps both modes of a conjugate pair.

A file named s5.py would be found instead of the package where this folder is searched first.
"""

import torch

from linrnn.mixers import S5
from published.case import Case, compare, fill, waves


def _default():
    import s5

    theirs, ours = s5.S5(5, 12).seq, S5(5, d_state=12, conj_sym=False)
    fill(list(ours.parameters()))
    with torch.no_grad():
        ours.A_re.copy_(-0.5 - 0.3 * ours.A_re.abs())
        ours.log_dt.sub_(2.5)
        theirs.Lambda.copy_(torch.complex(ours.A_re, ours.A_im))
        theirs.B.copy_(ours.B.transpose(1, 2))
        theirs.C.copy_(torch.complex(ours.C[..., 0], -ours.C[..., 1]))
        theirs.D.copy_(ours.D)
        theirs.log_step.copy_(ours.log_dt.view_as(theirs.log_step))
    pairs = {
        "A_re": (theirs.Lambda, lambda g: g.real),
        "A_im": (theirs.Lambda, lambda g: g.imag),
        "B": (theirs.B, lambda g: g.transpose(1, 2)),
        "C": (theirs.C, lambda g: torch.stack([g.real, -g.imag], -1)),
        "D": theirs.D,
        "log_dt": theirs.log_step,
    }
    peer = s5.S5(5, 12)
    peer.seq = theirs
    return compare(ours, peer, waves(2, 33, 5).float(), pairs)


# theirs knows float32 alone
CASES = [Case("s5", "s5-pytorch 0.2.1, S5", "default but for the sizes", "layer", _default, 3e-5)]
