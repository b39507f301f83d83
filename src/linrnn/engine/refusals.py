"""Replacements, for error messages, of functions that a step must not use."""

_REDUCTIONS = "sum mean prod max min amax amin argmax argmin norm var std softmax log_softmax "
_REDUCTIONS += "logsumexp cumsum cumprod any all item tolist numpy rms_norm group_norm layer_norm "
_REDUCTIONS += "median nansum nanmean count_nonzero aminmax topk sort argsort dist vdot dot inner "
_REDUCTIONS += "equal allclose cosine_similarity normalize softmin"
_VIEWS = "view reshape unflatten flatten chunk split unbind unsqueeze squeeze transpose permute "
_VIEWS += (
    "expand cat stack narrow flip index_select gather T mT shape size ndim dim concat concatenate "
)
_VIEWS += (
    "hstack vstack dstack expand_as view_as numel nelement broadcast_to movedim swapaxes t ravel "
)
_VIEWS += "diff glu tensor_split select take diag tril triu outer kron len pad"
_CASTS = (
    "float double half bfloat16 to type cpu cuda dtype device int long bool short byte char cfloat"
)
_CASTS = f"{_CASTS} cdouble is_floating_point is_complex element_size"
_DRAWS = ("rand", "bernoulli", "normal", "poisson", "multinomial", "binomial", "gumbel", "rrelu")

#: Functions that are made of a few others, and these.
_WRITTEN = {
    "asin": "torch.atan2(x, torch.sqrt((1 - x) * (1 + x)))",
    "acos": "torch.atan2(torch.sqrt((1 - x) * (1 + x)), x)",
    "asinh": "torch.log(x + torch.sqrt(x * x + 1)), for x that is not far below 0",
    "acosh": "torch.log(x + torch.sqrt((x - 1) * (x + 1)))",
    "atanh": "0.5 * (torch.log1p(x) - torch.log1p(-x))",
    "logit": "torch.log(x) - torch.log1p(-x)",
    "hypot": "torch.sqrt(x * x + y * y)",
    "erfc": "1 - torch.erf(x), which is 0 where x is large",
    "erfinv": "it before the scan",
    "logaddexp2": "torch.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)",
    "xlogy": "x * torch.log(y)",
    "xlog1py": "x * torch.log1p(y)",
    "sinc": "torch.where(x == 0, 1.0, torch.sin(math.pi * x) / (math.pi * x))",
    "fmax": "torch.maximum(x, y), which passes NaN on",
    "fmin": "torch.minimum(x, y), which passes NaN on",
    "copysign": "torch.where(y < 0, -torch.abs(x), torch.abs(x))",
    "signbit": "x < 0",
    "isposinf": "x == math.inf",
    "isneginf": "x == -math.inf",
    "isreal": "x.imag == 0",
    "isclose": "torch.abs(x - y) <= 1e-8 + 1e-5 * torch.abs(y)",
    "heaviside": "torch.where(x == 0, y, torch.where(x > 0, 1.0, 0.0))",
    "nan_to_num": "torch.where(torch.isnan(x), 0.0, x)",
    "ldexp": "x * torch.pow(2.0, y)",
    "float_power": "torch.pow(x, y)",
    "floor_divide": "torch.div(x, y, rounding_mode='floor'), which has a derivative, 0",
    "hardsigmoid": "torch.clamp(x / 6 + 0.5, 0, 1)",
    "hardswish": "x * torch.clamp(x / 6 + 0.5, 0, 1)",
    "hardshrink": "torch.where(torch.abs(x) > 0.5, x, 0.0)",
    "softshrink": "x - torch.clamp(x, -0.5, 0.5)",
    "prelu": "torch.where(x > 0, x, weight * x)",
    "angle": "torch.atan2(x.imag, x.real)",
    "dist": "it after the scan",
    "is_nonzero": "x != 0",
}


def refusal(name: str) -> str:
    """Say what to write instead of a function that a step must not use."""
    base_name = name.strip("_")
    if base_name.endswith(("shift", "gcd", "lcm")) or base_name in ("lshift", "rshift"):
        return "Bits of numbers have no derivative: compute it before or after."
    if base_name in _WRITTEN and not _in_place(name):
        return f"Write {_WRITTEN[base_name]}."
    if base_name in _REDUCTIONS.split():
        return "A sum of channels is linrnn.cells.fold; anything else belongs before or after."
    if base_name in ("repeat", "repeat_interleave", "tile"):
        return "Channels are repeated by linrnn.cells.spread."
    if base_name in _VIEWS.split():
        return "Every value is one number a channel: give parts as arguments of their own."
    if base_name in _CASTS.split():
        return "Leave it away: a scan computes in at least float32 and stores in its inputs' dtype."
    if name in ("detach", "requires_grad_"):
        return "Detach the argument before the scan; inside, gradients are those of the equation."
    if "dropout" in base_name or base_name.startswith(_DRAWS):
        return "Draw the random numbers before the scan and make them an input."
    if _in_place(name):
        return f"Nothing is changed in place: write x = x.{name.rstrip('_')}(...)."
    return (
        "Write it with the functions that linrnn.cells.functions() lists, or compute it before "
        "or after."
    )


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")
