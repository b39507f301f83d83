"""The package ``rwkv``, whose version an environment variable chooses when it is imported."""

import importlib.util

import pytest
import torch
from torch import nn


def load(monkeypatch, *, seven):
    """Its module, of version 7 or of those before, next to another that may be loaded."""
    package = pytest.importorskip("rwkv")
    for name, value in {
        "RWKV_V7_ON": str(int(seven)),
        "RWKV_JIT_ON": "0",
        "RWKV_CUDA_ON": "0",
    }.items():
        monkeypatch.setenv(name, value)
    # version 7 compiles itself whatever it is told, and changes how PyTorch does so for everyone
    for name, plain in (("script", _same), ("script_method", _same), ("ScriptModule", nn.Module)):
        monkeypatch.setattr(torch.jit, name, plain)
    monkeypatch.setattr(torch._C, "_jit_set_autocast_mode", _same)
    path = f"{package.__path__[0]}/model.py"
    spec = importlib.util.spec_from_file_location(f"rwkv_{seven}", path)
    module = importlib.util.module_from_spec(spec)
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    spec.loader.exec_module(module)  # which sets them for everyone
    cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32 = before
    return module


def _same(x):
    return x


def busy(layer):
    """A layer with random numbers where it starts at zero or one, so that every part matters."""
    torch.manual_seed(0)
    layer.reset_parameters()
    with torch.no_grad():
        for name, p in layer.named_parameters():
            p.add_(torch.randn_like(p), alpha=0.5 if p.ndim > 1 else 0.2)
            if "norm_weight" in name:
                p.abs_()
    return layer
