"""TensorRT plugins made of kernels' specifications: `register_plugin` makes one `trtspec::Name` known to TensorRT.

A plugin is one launch. Of a kernel that takes several, each launch is a plugin of its own, and whoever builds the
network chains them with `add_plugin`: the outputs of one are inputs of the next, by order. TensorRT sees the arrays in
between as any others, and keeps them in its own memory.

Built ahead of time, a plugin is the kernel's PTX with its launch parameters in the engine, which needs neither Python
nor this package at run time. The eager twin is the same plugin for debugging: it runs in Python, in an engine that is
only usable in such a process. TensorRT is imported when the first plugin is registered.

Attributes are arrays of one int32, not Python's integers: TensorRT 10.14 converts those back with `int(array)`, which
NumPy 2.4 refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from plugins import symbolic
from plugins.aot import KERNELS_PACKAGE, CompiledKernel, compile_kernel
from plugins.contract import KernelSpec
from trtspec.errors import KernelError, MissingDependency

if TYPE_CHECKING:
    from torch import Tensor

NAMESPACE = "trtspec"
ARCHITECTURE = "architecture"
"""The attribute that says which PTX goes into the engine."""
INSTALL = "install TensorRT 10.14, which TensorRT-LLM 1.2.1 brings: pip install 'trtspec[tensorrt-llm]'"

Twin = Callable[..., "tuple[Tensor, ...]"]
"""Takes a kernel's inputs in order and its numbers by name, and gives its outputs."""


def _ignore(spec: KernelSpec, compiled: CompiledKernel) -> None:
    """Told to nobody."""


def plugin_name(spec: KernelSpec) -> str:
    """`choose_token_parts` is the plugin `ChooseTokenParts`."""
    return "".join(part.capitalize() for part in spec.name.split("_"))


def register_plugin(
    spec: KernelSpec,
    twin: Twin | None = None,
    *,
    package: str = KERNELS_PACKAGE,
    compiled: Callable[[KernelSpec, CompiledKernel], None] = _ignore,
) -> None:
    """Make a kernel known to TensorRT, in this process, once. `compiled` is told of what goes into an engine."""
    trt = import_tensorrt()
    name = f"{NAMESPACE}::{plugin_name(spec)}"
    plugin = trt.plugin
    plugin.register(name)(_with_signature(_describe(spec, trt), _described(spec, trt)))
    plugin.autotune(name)(_with_signature(_autotune(spec, trt), _called(spec, "outputs")))
    kinds = (str, str, plugin.KernelLaunchParams, plugin.SymIntExprs)
    result = tuple[kinds]  # type: ignore[valid-type]
    ahead = _with_signature(_ahead_of_time(spec, package, compiled, trt), _called(spec, "outputs", "tactic"), result)
    plugin.aot_impl(name)(ahead)
    if twin is not None:
        plugin.impl(name)(_with_signature(_eager(spec, twin), _called(spec, "outputs", "stream", ahead=False)))


def add_plugin(
    network: Any, spec: KernelSpec, inputs: Sequence[Any], *, architecture: int, eager: bool = False, **numbers: int
) -> tuple[Any, ...]:
    """Put a registered plugin into a network, and return the tensors that it writes."""
    layer = add_layer(network, spec, inputs, architecture=architecture, eager=eager, **numbers)
    return tuple(layer.get_output(index) for index in range(len(spec.outputs)))


def add_layer(
    network: Any, spec: KernelSpec, inputs: Sequence[Any], *, architecture: int, eager: bool = False, **numbers: int
) -> Any:
    """Put a registered plugin into a network, and return its layer."""
    import numpy as np

    wanted = symbolic.numbers_of(spec)
    if set(numbers) != set(wanted):
        raise KernelError(f"{spec.name} takes the numbers {', '.join(wanted) or 'none'}; given are {sorted(numbers)}")
    trt = import_tensorrt()
    ordered = {**{name: numbers[name] for name in wanted}, ARCHITECTURE: architecture}
    attributes = {name: np.array([value], dtype=np.int32) for name, value in ordered.items()}
    instance = getattr(getattr(trt.plugin.op, NAMESPACE), plugin_name(spec))(*inputs, **attributes)
    return network.add_plugin(instance, not eager)


def import_tensorrt() -> Any:
    """TensorRT with its layer of Python plugins, or an error that says what to install."""
    try:
        import tensorrt
        import tensorrt.plugin
    except ImportError as error:
        raise MissingDependency(f"plugins need TensorRT, which cannot be imported ({error}); {INSTALL}") from None
    if not hasattr(tensorrt.plugin, "aot_impl"):
        raise MissingDependency(f"TensorRT {tensorrt.__version__} has no plugins that hold PTX; {INSTALL}")
    return tensorrt


def _describe(spec: KernelSpec, trt: Any) -> Callable[..., Any]:
    def describe(*inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        return symbolic.describe_outputs(spec, inputs, _integers(spec, attributes), trt)

    return describe


def _autotune(spec: KernelSpec, trt: Any) -> Callable[..., Any]:
    def autotune(*arguments: Any) -> list[Any]:
        return [trt.plugin.AutoTuneCombination(symbolic.autotune_types(spec), "LINEAR")]

    return autotune


def _ahead_of_time(
    spec: KernelSpec, package: str, told: Callable[[KernelSpec, CompiledKernel], None], trt: Any
) -> Callable[..., Any]:
    def ahead_of_time(*arguments: Any) -> tuple[str, str, Any, Any]:
        inputs, attributes = _split(spec, arguments)
        numbers = _integers(spec, attributes)
        logits = symbolic.logits_type(spec, inputs)
        found = symbolic.sizes(spec, inputs, numbers, trt.plugin)
        multiples = symbolic.multiples_of_16(spec, found)
        architecture = int(attributes[ARCHITECTURE][0])
        compiled = compile_kernel(spec, logits, architecture, multiples=multiples, package=package)
        told(spec, compiled)
        launch = trt.plugin.KernelLaunchParams(block_x=compiled.block_x, shared_mem=compiled.shared_bytes)
        for axis, size in zip(("grid_x", "grid_y", "grid_z"), spec.grid, strict=False):
            setattr(launch, axis, found[size])
        scalars = trt.plugin.SymIntExprs(len(spec.scalars))
        for index, name in enumerate(spec.scalars):
            scalars[index] = trt.plugin.SymInt32(found[name])
        return compiled.entry, compiled.ptx, launch, scalars

    return ahead_of_time


def _eager(spec: KernelSpec, twin: Twin) -> Callable[..., Any]:
    def eager(*arguments: Any, stream: int) -> None:
        from plugins import device_tensors

        inputs, attributes = _split(spec, arguments)
        with device_tensors.on_stream(stream):
            results = twin(*map(device_tensors.as_torch, inputs), **_integers(spec, attributes))
            for output, result in zip(arguments[-1], results, strict=True):
                device_tensors.as_torch(output).copy_(result)

    return eager


def _split(spec: KernelSpec, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs, and attributes by name, of what TensorRT calls with; what follows them is left."""
    count = len(spec.inputs)
    names = (*symbolic.numbers_of(spec), ARCHITECTURE)
    return tuple(arguments[:count]), dict(zip(names, arguments[count:], strict=False))


def _integers(spec: KernelSpec, attributes: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(attributes[name][0]) for name in symbolic.numbers_of(spec)}


def _described(spec: KernelSpec, trt: Any) -> Signature:
    """TensorRT reads what a plugin takes and gives from its function's annotations."""
    import numpy as np

    number = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    kinds = {item.name: trt.plugin.TensorDesc for item in spec.inputs}
    kinds |= dict.fromkeys((*symbolic.numbers_of(spec), ARCHITECTURE), number)
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind) for name, kind in kinds.items()]
    returned = (trt.plugin.TensorDesc,) * len(spec.outputs)
    return Signature(parameters, return_annotation=tuple[returned])  # type: ignore[valid-type]


def _called(spec: KernelSpec, *last: str, ahead: bool = True) -> Signature:
    """The same without annotations, which are optional there; an eager twin has no architecture."""
    attributes = [*symbolic.numbers_of(spec), *([ARCHITECTURE] if ahead else [])]
    names = [*(item.name for item in spec.inputs), *attributes, *last]
    return Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])


def _with_signature(function: Callable[..., Any], signature: Signature, returned: Any = None) -> Callable[..., Any]:
    changed = signature if returned is None else signature.replace(return_annotation=returned)
    function.__signature__ = changed  # type: ignore[attr-defined]
    return function
