"""A layer against a plain loop over its equation."""

import torch


def check_equal(layer, transcription, steps=20, cut=7):
    """Split and whole, and gradients of input and parameters, all of which are moved at random.

    Args:
        layer: in float64.
        transcription: ``(layer, x) -> y`` of one sequence (time, d_model).
    """
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(1, steps, layer.d_model, dtype=torch.float64, requires_grad=True)
    expected = transcription(layer, x[0])[None]
    first, state = layer(x[:, :cut])
    y = torch.cat([first, layer(x[:, cut:], state)[0]], 1)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layer(x)[0], expected, rtol=1e-9, atol=1e-10)
    sources, weight = (x, *layer.parameters()), torch.randn_like(y)
    got, want = (torch.autograd.grad((z * weight).sum(), sources) for z in (y, expected))
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-8)


def lead_out(layer, h):
    """Map the state's width back to d_model."""
    out = layer.out_proj
    return h if isinstance(out, torch.nn.Identity) else h @ out.weight.T + out.bias
