"""The network of a model that is being built: its outputs, and the plugins on the way to them.

Of the model's own layers only the ends are there: hidden states and logits. Plugins are those of TensorRT's real Python
layer, asked what its builder asks: types, shapes, launches, and the kernels that an engine holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    """A tensor of the network."""

    origin: tuple[Any, ...]
    """What it is, or what it comes from: hidden states, logits of such, or an output of a plugin."""
    shape: tuple[str | int, ...]
    dtype: str


class Network:
    """TensorRT's `INetworkDefinition`, as far as models of a user's may go."""

    def __init__(self, dtype: str, width: int, sizes: dict[str, int]) -> None:
        self.dtype, self.width, self.sizes = dtype, width, sizes
        self.outputs: dict[str, Array] = {}
        self._handles: dict[int, Any] = {}
        self._arrays: dict[int, Array] = {}

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
        assert name is not None and name not in self.outputs, f"an output {name!r} is marked already"
        self.outputs[name] = Array(array.origin, array.shape, dtype or array.dtype)


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
    """Of an output of a layer that was added beside upstream's functions."""
    assert isinstance(producer, Layer), f"{producer!r} is no layer"
    assert any(handle is output for output in producer.outputs), "the tensor is none of the layer's outputs"
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
