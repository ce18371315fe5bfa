"""What kernels written as LLVM instructions share: vectors of floats, places in arrays, loops that carry sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 8
INDEX, FLOAT, INT32 = ir.IntType(64), ir.FloatType(), ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)


class VectorCode:
    """Writes instructions where a builder stands."""

    def __init__(self, context: Any, builder: Any) -> None:
        self._context = context
        self.builder = builder

    def array(self, kind: Any, value: Any) -> Any:
        """A C-contiguous array among the arguments."""
        return self._context.make_array(kind)(self._context, self.builder, value)

    def row(self, array: Any, index: Any, ahead: int = 0) -> Any:
        """Where a row of a matrix begins, or one that comes so many rows later."""
        width = self.builder.extract_value(array.shape, 1)
        place = self.builder.add(index, INDEX(ahead)) if ahead else index
        return self.builder.gep(array.data, [self.builder.mul(place, width)])

    def at(self, place: Any, index: Any) -> Any:
        return self.builder.gep(place, [index])

    def load(self, place: Any, kind: Any = VECTOR) -> Any:
        return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=1)

    def store(self, value: Any, place: Any) -> None:
        self.builder.store(value, self.builder.bitcast(place, value.type.as_pointer()), align=1)

    def spread(self, number: Any) -> Any:
        """A vector of one number."""
        lane = self.builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, INT32(0))
        return self.builder.shuffle_vector(
            lane, ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES)
        )

    def fused(self, x: Any, y: Any, added: Any) -> Any:
        """x * y + added, rounded once."""
        return self.builder.call(self.function("llvm.fma.v8f32", VECTOR, [VECTOR] * 3), [x, y, added])

    def total(self, vector: Any) -> Any:
        """The sum of the lanes."""
        add = self.function("llvm.vector.reduce.fadd.v8f32", FLOAT, [FLOAT, VECTOR])
        return self.builder.call(add, [FLOAT(0.0), vector], fastmath=("reassoc",))

    def fetch(self, place: Any) -> None:
        """Bring what lies at a place nearer, without waiting for it."""
        byte = ir.IntType(8).as_pointer()
        prefetch = self.function("llvm.prefetch.p0", ir.VoidType(), [byte, INT32, INT32, INT32])
        self.builder.call(prefetch, [self.builder.bitcast(place, byte), INT32(0), INT32(3), INT32(1)])

    def sums(self, end: Any, step: int, start: Sequence[Any], added: Callable[[Any, Sequence[Any]], list[Any]]) -> Any:
        """Carry vectors through a loop over range(0, end, step), which runs once at least; returns the last ones."""
        builder, before = self.builder, self.builder.block
        loop, done = builder.append_basic_block("sums"), builder.append_basic_block("sums.done")
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(INDEX)
        carried = [builder.phi(VECTOR) for _ in start]
        following = added(index, carried)
        after = builder.add(index, INDEX(step))
        for phi, first, later in zip([index, *carried], [INDEX(0), *start], [after, *following], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", after, end), loop, done)
        builder.position_at_end(done)
        return following

    def function(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)  # type: ignore[no-untyped-call]
