"""Graph nodes with a decoder's meaning, over OpenVINO's operations. They know no model and no file.

The spelling of some patterns matters: the compiler recognises the rotation and the compressed weights by their shape.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import torch
from openvino import Node, PartialShape, Type, opset13
from openvino.op import Constant, Parameter
from torch import Tensor

from trtspec.executors.embedded.weights import Int8Weight, Weight

_DECOMPRESSION = "decompression_0"
"""Marks a conversion of stored weights: the compiler keeps them small and converts inside the product."""
_TYPES = {torch.float32: Type.f32, torch.bfloat16: Type.bf16, torch.int8: Type.i8}


def parameter(name: str, kind: Type, shape: PartialShape) -> Parameter:
    """A named input."""
    made = opset13.parameter(shape, kind)
    made.set_friendly_name(name)
    made.output(0).get_tensor().set_names({name})
    return made


def constant(tensor: Tensor) -> Node:
    """A constant with a copy of the tensor's values."""
    return Constant(_view(tensor), shared_memory=False)


def weight(stored: Weight) -> Node:
    """A stored matrix as float32, [out, in]; expanded only inside the product that reads it.

    Its memory is shared: the tensor must outlive what is compiled, which packs a matrix when it is first used.
    """
    if isinstance(stored, Int8Weight):
        values = opset13.convert(_shared(stored.values), Type.f32)
        return opset13.multiply(values, constant(stored.scales.unsqueeze(1)))
    if stored.dtype is torch.float32:
        return _shared(stored)
    widened = opset13.convert(_shared(stored), Type.f32)
    widened.get_rt_info()[_DECOMPRESSION] = ""
    return widened


def product(x: Node | ov.Output, stored: Weight, bias: Tensor | None = None) -> Node:
    """x times the transposed matrix, [T, in] -> [T, out]."""
    result = opset13.matmul(x, weight(stored), False, True)
    return result if bias is None else opset13.add(result, constant(bias.float()))


def rows(stored: Weight, indices: Node) -> Node:
    """Some rows of a stored matrix as float32, [T] -> [T, in]."""
    axis = np.int32(0)
    if isinstance(stored, Int8Weight):
        values = opset13.convert(opset13.gather(_shared(stored.values), indices, axis), Type.f32)
        return opset13.multiply(values, opset13.gather(constant(stored.scales.unsqueeze(1)), indices, axis))
    return opset13.gather(weight(stored), indices, axis)  # converted after the gather, all of it would be widened


def rms_norm(x: Node, scale: Tensor, epsilon: float) -> Node:
    """RMSNorm over the last dimension (Zhang and Sennrich 2019)."""
    mean = opset13.reduce_mean(opset13.power(x, np.float32(2.0)), np.array([-1]), keep_dims=True)
    inverse = opset13.divide(np.float32(1.0), opset13.sqrt(opset13.add(mean, np.float32(epsilon))))
    return opset13.multiply(opset13.multiply(x, inverse), constant(scale.float()))


def rotate(x: Node, cos: Node, sin: Node, width: int) -> Node:
    """Half-split rotation, [T, heads, 1, D] with cos and sin [T, 1, 1, D] (Su et al. 2021)."""
    first, second = _slice(x, 0, width // 2), _slice(x, width // 2, width)
    turned = opset13.concat([opset13.multiply(second, np.float32(-1.0)), first], -1)
    return opset13.add(opset13.multiply(x, cos), opset13.multiply(turned, sin))


def silu_gate(x: Node, width: int) -> Node:
    """SwiGLU's gate over stacked halves, [T, 2 I] -> [T, I] (Shazeer 2020)."""
    gate, up = split(x, [width, width])
    return opset13.multiply(opset13.swish(gate), up)


def split(x: Node, sizes: list[int]) -> list[ov.Output]:
    """Parts of the last of two dimensions."""
    return list(opset13.variadic_split(x, np.int64(1), np.array(sizes)).outputs())


def reshape(x: ov.Output | Node, *shape: int) -> Node:
    return opset13.reshape(x, np.array(shape), False)


def _slice(x: Node, start: int, stop: int) -> Node:
    return opset13.slice(x, np.array([start]), np.array([stop]), np.array([1]), np.array([3]))


def _shared(tensor: Tensor) -> Constant:
    return Constant(_view(tensor), shared_memory=True)


def _view(tensor: Tensor) -> ov.Tensor:
    """The tensor's memory as OpenVINO sees it. NumPy has no bfloat16, so its bits pass as integers."""
    bits = tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
    return ov.Tensor(bits.numpy(), ov.Shape(list(tensor.shape)), _TYPES[tensor.dtype])
