"""What kernels written as LLVM instructions share: vectors of floats, places in arrays, loops that carry sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils

STEP = 8
"""Lengths that kernels read are multiples of it."""
LANES = 16 if get_host_cpu_features().get("avx512f") else STEP
"""Floats in the widest vector of this CPU."""
INDEX, FLOAT, INT32 = ir.IntType(64), ir.FloatType(), ir.IntType(32)


class VectorCode:
    """Writes instructions on vectors of so many floats where a builder stands."""

    def __init__(self, context: Any, builder: Any, lanes: int = LANES) -> None:
        self._context = context
        self.builder = builder
        self.lanes = lanes
        self.vector = ir.VectorType(FLOAT, lanes)
        self._integers = ir.VectorType(INT32, lanes)

    def array(self, kind: Any, value: Any) -> Any:
        """A C-contiguous array among the arguments."""
        return self._context.make_array(kind)(self._context, self.builder, value)

    def row(self, array: Any, index: Any, offset: int = 0) -> Any:
        """Where a row of a matrix begins, or one that comes so many rows later."""
        width = self.builder.extract_value(array.shape, 1)
        place = self.builder.add(index, INDEX(offset)) if offset else index
        return self.builder.gep(array.data, [self.builder.mul(place, width)])

    def at(self, place: Any, index: Any) -> Any:
        return self.builder.gep(place, [index])

    def number(self, place: Any) -> Any:
        """The float at a place."""
        return self.builder.load(place)

    def load(self, place: Any, kind: Any = types.float32) -> Any:
        """A vector of stored numbers as floats: float32, int8, or uint16 for the bits of bfloat16."""
        if kind is types.float32:
            return self._load(place, self.vector)
        stored = self._load(place, ir.VectorType(ir.IntType(kind.bitwidth), self.lanes))
        if kind.signed:
            return self.builder.sitofp(self.builder.sext(stored, self._integers), self.vector)
        high = ir.Constant(self._integers, [16] * self.lanes)
        return self.builder.bitcast(self.builder.shl(self.builder.zext(stored, self._integers), high), self.vector)

    def _load(self, place: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=1)

    def store(self, value: Any, place: Any) -> None:
        self.builder.store(value, self.builder.bitcast(place, value.type.as_pointer()), align=1)

    def zeros(self, count: int) -> list[Any]:
        return [ir.Constant(self.vector, [0.0] * self.lanes)] * count

    def spread(self, number: Any) -> Any:
        """A vector of one number."""
        nothing = ir.Constant(self.vector, ir.Undefined)
        lane = self.builder.insert_element(nothing, number, INT32(0))
        return self.builder.shuffle_vector(lane, nothing, ir.Constant(self._integers, [0] * self.lanes))

    def fused(self, x: Any, y: Any, added: Any) -> Any:
        """x * y + added, rounded once."""
        return self.builder.call(self._function("fma", self.vector, [self.vector] * 3), [x, y, added])

    def total(self, vector: Any, start: Any) -> Any:
        """The sum of the lanes and a float."""
        add = self._function("vector.reduce.fadd", FLOAT, [FLOAT, self.vector])
        return self.builder.call(add, [start, vector], fastmath=("reassoc",))

    def fetch(self, place: Any) -> None:
        """Bring what lies at a place nearer, without waiting for it."""
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
        prefetch = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        self.builder.call(prefetch, [self.builder.bitcast(place, byte), INT32(0), INT32(3), INT32(1)])

    def sums(
        self, begin: Any, end: Any, step: int, start: Sequence[Any], added: Callable[[Any, Sequence[Any]], list[Any]]
    ) -> list[Any]:
        """Carry vectors through a loop over range(begin, end, step); returns the last ones."""
        builder, before = self.builder, self.builder.block
        head, loop, done = (builder.append_basic_block(f"sums.{name}") for name in ("head", "loop", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        index, carried = builder.phi(INDEX), [builder.phi(self.vector) for _ in start]
        builder.cbranch(builder.icmp_signed("<", index, end), loop, done)
        builder.position_at_end(loop)
        following = [builder.add(index, INDEX(step)), *added(index, carried)]
        builder.branch(head)
        for phi, first, later in zip([index, *carried], [begin, *start], following, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        builder.position_at_end(done)
        return carried

    def _function(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{self.lanes}f32")  # type: ignore[no-untyped-call]
