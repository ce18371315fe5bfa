"""TensorRT's own Python package, importable without TensorRT's libraries.

The wheel `tensorrt_cu13_bindings` (1 MB) has the Python layer of plugins, and the native module below it, which needs
three libraries of some gigabytes. It calls nine of their functions, when it is asked for a builder, a runtime or a
registry; libraries with nothing but these nine stand for them here. So all classes, types and checks are NVIDIA's, and
ours is what the libraries would do: keep a registry, and build expressions of dimensions, which have values here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_LIBRARIES = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
_FUNCTIONS = (
    *("createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL"),
    *("createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getNvOnnxParserVersion"),
    *("getBuilderPluginRegistry", "getPluginRegistry", "initLibNvInferPlugins"),
)
_KEPT: dict[str, ModuleType] = {}
"""By name. A native module cannot be loaded twice, and must not go before the interpreter does."""
NOT_INSTALLED = "TensorRT's Python layer is not installed: pip install tensorrt-cu13-bindings==10.14.1.48.post1"


@contextlib.contextmanager
def tensorrt_without_libraries(folder: Path) -> Iterator[ModuleType]:
    """The package, importable as `tensorrt`, with no plugins yet; skips where the wheel or a C compiler is missing."""
    import pytest

    if (missing := missing_here()) is not None:
        pytest.skip(missing)
    try:
        yield load(folder)
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt"]:
            _KEPT[name] = sys.modules.pop(name)
        _forget_plugins(_KEPT["tensorrt.plugin._lib"])


def missing_here() -> str | None:
    """Why the package cannot be loaded."""
    if importlib.util.find_spec("tensorrt_bindings") is None:
        return NOT_INSTALLED
    return None if shutil.which("cc") else "no C compiler (cc) for the stand-ins of TensorRT's libraries"


def load(folder: Path) -> ModuleType:
    """Import the package as `tensorrt`, once in a process; `folder` is for what that needs."""
    if _KEPT:
        sys.modules.update(_KEPT)
    else:
        _import(folder)
    trt = sys.modules["tensorrt"]
    registry = Registry()
    trt.get_plugin_registry = lambda: registry  # type: ignore[attr-defined]
    return trt


def _import(folder: Path) -> None:
    bindings = importlib.util.find_spec("tensorrt_bindings")
    assert bindings is not None and bindings.origin is not None, NOT_INSTALLED
    _load_libraries(folder, "cc")
    (folder / "tensorrt").symlink_to(Path(bindings.origin).parent)
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its docstrings
            importlib.invalidate_caches()
            importlib.import_module("tensorrt")
            importlib.import_module("tensorrt.plugin")
    finally:
        sys.path.remove(str(folder))


def _forget_plugins(layer: Any) -> None:
    for known in (layer.QDP_REGISTRY, layer.QDP_CREATORS):
        known.clear()
    for name in [name for name, value in vars(layer.op).items() if isinstance(value, layer._PluginNamespace)]:
        delattr(layer.op, name)


def _load_libraries(folder: Path, compiler: str) -> None:
    source = folder / "nothing.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in _FUNCTIONS))
    for name in _LIBRARIES:
        library = str(folder / name)
        subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", library, str(source)], check=True)
        ctypes.CDLL(library)


class Registry:
    """Creators of plugins, by name."""

    def __init__(self) -> None:
        self._creators: dict[tuple[str, str, str], Any] = {}

    def register_creator(self, creator: Any, namespace: str) -> None:
        self._creators[creator.name, creator.plugin_version, namespace] = creator

    def get_creator(self, name: str, version: str, namespace: str) -> Any:
        return self._creators[name, version, namespace]


class Network:
    """What `add_plugin` of a network does with a plugin that Python describes."""

    def __init__(self, trt: Any) -> None:
        self.trt = trt
        self.plugins: list[Any] = []

    def add_plugin(self, instance: Any, aot: bool) -> Any:
        wanted = self.trt.QuickPluginCreationRequest
        inputs, shape_inputs, plugin = instance(wanted.STRICT_AOT if aot else wanted.STRICT_JIT)
        assert not shape_inputs
        self.plugins.append(plugin)
        return Layer(inputs, plugin.num_outputs)


class Layer:
    def __init__(self, inputs: list[Any], outputs: int) -> None:
        self.inputs = inputs
        self._outputs = [object() for _ in range(outputs)]

    def get_output(self, index: int) -> object:
        return self._outputs[index]


def builder_of_expressions(trt: Any) -> Any:
    """An `IExprBuilder` whose expressions have values: `.dimension(size)` is one that is not known when building."""
    operations = {
        "SUM": lambda a, b: a + b,
        "PROD": lambda a, b: a * b,
        "SUB": lambda a, b: a - b,
        "MAX": max,
        "MIN": min,
        "FLOOR_DIV": lambda a, b: a // b,
        "CEIL_DIV": lambda a, b: -(-a // b),
    }

    class Expression(trt.IDimensionExpr):  # type: ignore[misc]
        value: int
        constant: bool

        def is_constant(self) -> bool:
            return self.constant

        def get_constant_value(self) -> int:
            assert self.constant
            return self.value

    def made(value: int, constant: bool) -> Any:
        expression = Expression.__new__(Expression)  # only TensorRT constructs them
        expression.value, expression.constant = value, constant
        return expression

    class Builder(trt.IExprBuilder):  # type: ignore[misc]
        def dimension(self, size: int) -> Any:
            return made(size, False)

        def constant(self, value: int) -> Any:
            return made(value, True)

        def operation(self, operation: Any, first: Any, second: Any) -> Any:
            value = operations[operation.name](first.value, second.value)
            return made(value, first.constant and second.constant)

    return Builder()


def dimensions(builder: Any, shapes: Sequence[Sequence[int]]) -> list[list[Any]]:
    """Shapes of which no size is known when building."""
    return [[builder.dimension(size) for size in shape] for shape in shapes]


class Scalars(dict[int, Any]):
    """What TensorRT's layer writes a kernel's numbers to."""

    nbSymExprs = 0


def described(trt: Any, shape: Sequence[int], kind: Any) -> Any:
    """An input or output of a plugin, as the builder tells it of one."""
    found = trt.DynamicPluginTensorDesc()
    found.desc = trt.PluginTensorDesc()
    found.desc.dims, found.desc.type, found.desc.format = tuple(shape), kind, trt.TensorFormat.LINEAR
    return found


@dataclass(frozen=True)
class Announced:
    """What a plugin says of its outputs."""

    kinds: list[Any]
    shapes: list[list[Any]]
    """Expressions."""

    @property
    def sizes(self) -> list[list[int]]:
        return [[size.value for size in shape] for shape in self.shapes]


@dataclass(frozen=True)
class Asked:
    """All that a builder is told of a plugin that holds PTX."""

    outputs: Announced
    combinations: list[list[Any]]
    """Descriptions of the inputs and outputs that it takes together."""
    launch: dict[str, int]
    numbers: list[int]
    number_kinds: list[Any]
    entry: str
    text: str

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.launch[axis] for axis in ("grid_x", "grid_y", "grid_z"))


def announced(plugin: Any, kinds: Sequence[Any], shapes: Sequence[Sequence[Any]], builder: Any) -> Announced:
    """Of outputs, for inputs of these types, and of shapes that are expressions of the builder's."""
    given = plugin.get_output_data_types(list(kinds), [len(shape) for shape in shapes])
    plugin.get_output_shapes([list(shape) for shape in shapes], [], builder)
    return Announced(given, [[size._expr for size in item.shape_expr] for item in plugin.output_descs])


def asked(trt: Any, plugin: Any, kinds: Sequence[Any], shapes: Sequence[Sequence[Any]], builder: Any) -> Asked:
    """Everything, for such inputs, in the order in which a builder asks; on the way the kernel is compiled."""
    outputs, count = announced(plugin, kinds, shapes, builder), len(kinds)
    sizes = [[size.value for size in shape] for shape in shapes]
    pairs = zip([*sizes, *outputs.sizes], [*kinds, *outputs.kinds], strict=True)
    arrays = [described(trt, *pair) for pair in pairs]
    offered = plugin.get_supported_format_combinations(arrays, count)
    plugin.set_tactic(0)
    launch, scalars = SimpleNamespace(), Scalars()
    with readable_launches():
        plugin.get_launch_params([], arrays, count, launch, scalars, builder)
        numbers = [scalars[index] for index in range(scalars.nbSymExprs)]
        parameters = {name: item.expr.value for name, item in vars(launch).items()}
        values, number_kinds = [item.expr.value for item in numbers], [item.dtype for item in numbers]
    descriptions = [item.desc for item in arrays]
    entry, text = plugin.get_kernel(descriptions[:count], descriptions[count:])
    combinations = [list(offered[start : start + len(arrays)]) for start in range(0, len(offered), len(arrays))]
    return Asked(outputs, combinations, parameters, values, number_kinds, entry, text.decode())


@contextlib.contextmanager
def readable_launches() -> Iterator[None]:
    """What NVIDIA's expressions of launches are given has setters and no getters; here they are plain attributes."""
    kind = sys.modules["tensorrt.plugin._tensor"].SymExprImpl
    kind.expr = kind.dtype = None
    try:
        yield
    finally:
        del kind.expr, kind.dtype
