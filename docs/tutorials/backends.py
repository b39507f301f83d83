# %% [markdown]
# # Who computes it
#
# One recurrence has several backends: a plain loop, a tree of PyTorch's operators, native kernels, and
# Triton's on a GPU. The fastest that can compute a call is taken, and `explain` says which, and why.

# %%
import torch

from linrnn.ops import explain, linear_scan, use_backend

a, b = torch.rand(64), torch.randn(2, 4096, 64)
print(explain(a, b).replace("; ", "\n"))

# %% [markdown]
# All of them give the same numbers up to rounding. `use_backend` asks for one:

# %%
exact = linear_scan(a.double(), b.double(), backend="reference")[0]
for name in ("reference", "tree"):
    with use_backend(name):
        h, _ = linear_scan(a, b)
    print(f"{name:10} {(h - exact).abs().max().item():.1e}")

# %% [markdown]
# A mixer may have several forms, too: the same equation, as a scan or one step after another.

# %%
from linrnn.mixers import LRU

layer = LRU(d_model=64)
layer.forms
