"""The network of a model that is being built: its outputs, and the plugins on the way to them.

Of the model's own layers only the ends are there: hidden states and logits. Plugins are those of TensorRT's real Python
layer, asked what its builder asks: types, shapes, launches, and the kernels that an engine holds.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorrt_llm._double.plugin_layers import Layer, add
from tensorrt_llm._table import Declared

TOKENS, ROWS = "tokens", "rows"
"""Dynamic dimensions: all tokens of a pass, and those that a token is sampled after."""
HIDDEN = "hidden states"
_LOGITS = "logits"
_MADE: list[Network] = []


@dataclass(frozen=True)
class Array:
    """A tensor of the network, which its identity tells from others."""

    origin: tuple[Any, ...]
    """What it is, or what it comes from: hidden states, logits of such, or an output of a plugin."""
    shape: tuple[str | int, ...]
    dtype: str


class Network:
    """TensorRT's `INetworkDefinition`, as far as models of a user's may go."""

    def __init__(self, dtype: str, width: int, sizes: dict[str, int]) -> None:
        self.dtype, self.width, self.sizes = dtype, width, sizes
        self._marked: list[Array] = []
        self._names: dict[int, str] = {}
        self._named_layers = itertools.count()
        self._handles: dict[int, Any] = {}
        self._arrays: dict[int, Array] = {}

    @property
    def outputs(self) -> dict[str, Array]:
        """By the names that their tensors have in the end."""
        return {self._names[id(array)]: array for array in self._marked}

    def add_plugin(self, plugin: Any, aot: bool | None = None) -> Layer:
        return add(self, plugin, aot)

    def handle(self, array: Array) -> Any:
        """TensorRT's tensor; only its own code constructs them."""
        import tensorrt

        made = tensorrt.ITensor.__new__(tensorrt.ITensor)
        self._handles[id(made)], self._arrays[id(made)] = made, array
        return made

    def array(self, handle: Any) -> Array:
        assert id(handle) in self._arrays, "the tensor is of another network"
        return self._arrays[id(handle)]

    def mark(self, array: Array, name: str | None, dtype: str | None) -> None:
        """The tensor has the name from then on. Where types differ, that is what a cast gives, and not its input."""
        assert name is not None and name not in self.outputs, f"an output {name!r} is marked already"
        marked = array if dtype in (None, array.dtype) else replace(array, dtype=dtype)
        self._marked.append(marked)
        self._names[id(marked)] = name

    def name_outputs(self, layer: Layer) -> None:
        """After the layer, which gets a new name each time; upstream's tells the module, too."""
        name = f"{layer.plugin.plugin_name}_{next(self._named_layers)}"
        for index, handle in enumerate(layer.outputs):
            self._names[id(self.array(handle))] = f"{name}_output_{index}"


class Tensor(Declared):
    """What layers of a model pass on."""

    _array: Array
    _network: Network
    _handle: Any = None

    @property
    def trt_tensor(self) -> Any:
        if self._handle is None:
            self._handle = self._network.handle(self._array)
        return self._handle

    @property
    def dtype(self) -> str:
        return self._array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else -1 for size in self._array.shape)

    def mark_output(self, name: str | None, dtype: str | None) -> None:
        self._network.mark(self._array, name, dtype)


def current() -> Network:
    assert _MADE, "no network is being made"
    return _MADE[-1]


@contextlib.contextmanager
def making(dtype: str, width: int, sizes: dict[str, int]) -> Iterator[Network]:
    _MADE.append(Network(dtype, width, sizes))
    try:
        yield _MADE[-1]
    finally:
        _MADE.pop()


def tensor(array: Array, handle: Any = None) -> Tensor:
    made = Tensor.__new__(Tensor)
    made._array, made._network, made._handle = array, current(), handle
    return made


def wrapped(handle: Any, producer: Any) -> Tensor:
    """Of an output of a layer that was added beside upstream's functions, all of whose outputs are renamed."""
    assert isinstance(producer, Layer), f"{producer!r} is no layer"
    assert any(handle is output for output in producer.outputs), "the tensor is none of the layer's outputs"
    current().name_outputs(producer)
    return tensor(current().array(handle), handle)


def hidden_states(rows: str, size: int) -> Tensor:
    return tensor(Array((HIDDEN,), (rows, size), current().dtype))


def logits(hidden: Tensor) -> Tensor:
    """The output head, whole on every rank."""
    array = hidden._array
    assert array.origin == (HIDDEN,), "the output head is for hidden states"
    return tensor(Array((_LOGITS,), (array.shape[0], current().width), current().dtype))


def chain(array: Array) -> list[dict[str, Any]]:
    """The plugins from the logits to a tensor, first to last. Each takes all outputs of the one before."""
    found: list[dict[str, Any]] = []
    origins: Sequence[Any] = [array.origin]
    while origins[0] != (_LOGITS,):
        layers = {id(origin[0]): origin[0] for origin in origins}
        assert len(layers) == 1, "the double runs chains of plugins alone"
        layer: Layer = next(iter(layers.values()))
        found.insert(0, layer.facts)
        origins = [item.origin for item in layer.inputs]
    assert len(origins) == 1, "a chain begins with logits alone"
    return found
