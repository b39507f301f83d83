"""Triton's interpreter in half of its time, with the same numbers.

Its time is not that of NumPy, but of describing each value: the type of a block is validated and
named anew for every operation. Here what depends on a type alone is computed once a type.

To be imported in a process of its own, with ``TRITON_INTERPRET=1``.
"""

from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_patch, _run = interpreter._patch_lang, interpreter.GridExecutor.__call__
#: Modules whose functions were called in this grid, by the identities of their names.
_patched = set()


def patch_once(function):
    """Patch what functions of a module see of the language, at the first call of one in a grid.

    By itself the interpreter looks at every name of the language whenever a kernel calls a
    function: half of its time. The functions it sets are the same each time.
    """
    names = id(function.__globals__)
    if names in _patched:
        return None
    _patched.add(names)
    return _patch(function)


def run(executor, *arguments, **options):
    """A grid; what it patched is taken back at its end."""
    _patched.clear()
    _run(executor, *arguments, **options)


_describe_block = core.block_type.__init__
_describe_tensor = core.tensor.__init__
#: What blocks have, by the name of their elements and their sizes.
_blocks = {}
#: Sizes of a tensor and their product, by the sizes of its type.
_sizes = {}


def describe_block(self, element_ty, shape):
    """The attributes of an equal type that was described before."""
    assert isinstance(shape, (list, core.tuple))
    sizes = [x.value if isinstance(x, core.constexpr) else x for x in shape]
    key = (element_ty.name, *sizes)
    if key not in _blocks:
        _describe_block(self, element_ty, sizes)  # refuses other sizes, which are not kept
        _blocks[key] = self.shape, self.numel, self.name
    self.element_ty = element_ty
    self.shape, self.numel, self.name = _blocks[key]


def describe_tensor(self, handle, type):
    """A value and its type, with the sizes of an earlier tensor."""
    sizes = tuple(type.shape) if type.is_block() else ()
    if sizes not in _sizes:
        _describe_tensor(self, handle, type)
        _sizes[sizes] = self.shape, self.numel
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _sizes[sizes]


_np_dtype = interpreter._get_np_dtype
#: Of elements, by their names.
_np_dtypes = {}


def np_dtype(dtype):
    """As the interpreter says, which writes down a table of all for each one."""
    element = dtype.element_ty if isinstance(dtype, core.block_type) else dtype
    if element.name not in _np_dtypes:
        _np_dtypes[element.name] = _np_dtype(element)
    return _np_dtypes[element.name]


_broadcast = TritonSemantic.broadcast_impl_value


def broadcast(self, lhs, rhs):
    """Operands of the same sizes as they are."""
    one, other = lhs.type, rhs.type
    if one.is_block() and other.is_block() and one.shape.values == other.shape.values:
        return lhs, rhs
    return _broadcast(self, lhs, rhs)


_sanitize = TritonSemantic.binary_op_sanitize_overflow_impl


def sanitize(self, *arguments):
    """Without ``debug`` the interpreter computes in 64 bits too, and then looks at nothing."""
    if self.builder.options.debug:
        _sanitize(self, *arguments)


def replace(owner, name, function):
    assert hasattr(owner, name)  # a later Triton may have none
    setattr(owner, name, function)


replace(interpreter, "_patch_lang", patch_once)
replace(interpreter, "_get_np_dtype", np_dtype)
replace(interpreter.GridExecutor, "__call__", run)
replace(core.block_type, "__init__", describe_block)
replace(core.tensor, "__init__", describe_tensor)
replace(TritonSemantic, "broadcast_impl_value", broadcast)
replace(TritonSemantic, "binary_op_sanitize_overflow_impl", sanitize)
