# %% [markdown]
# # Who computes it
#
# After this page you know which backend computes a recurrence, how to choose another, and that the results
# agree. A backend is a plain loop, a tree of PyTorch operators, native kernels, or Triton kernels on a
# GPU. The fastest one that supports the call is used. `explain` names it and gives the reason.

# %%
import torch

from linrnn.ops import explain, linear_scan, use_backend

a, b = torch.rand(64), torch.randn(2, 4096, 64)
print(explain(a, b).replace("; ", "\n"))

# %% [markdown]
# All give the same numbers up to rounding. `use_backend` selects one. The backend `reference` is the
# plain alternative, a loop over steps in Python. Errors are relative to that loop in float64:

# %%
exact = linear_scan(a.double(), b.double(), backend="reference")[0]
for name in ("reference", "tree"):
    with use_backend(name):
        h, _ = linear_scan(a, b)
    print(f"{name:10} {(h - exact).abs().max().item():.1e}")

# %% [markdown]
# A mixer may also have several forms: the same equation as a scan, a convolution or real blocks.

# %%
from linrnn.mixers import LRU

layer = LRU(d_model=64)
layer.forms
