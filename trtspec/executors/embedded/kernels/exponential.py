"""The exponential function in float32, in instructions that a compiler can run for many numbers at once."""

from __future__ import annotations

import numpy as np

from trtspec.executors.embedded.kernels.bits import of_bits
from trtspec.executors.embedded.kernels.compiling import serial

_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
"""Beyond these, results are about 1e-38 and 2e38 instead of 0 and infinity."""
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)


@serial
def exp(x: np.float32) -> np.float32:
    """e to the x within three units of the last place, for x from -87 to 88: Cephes' polynomial on half of ln 2."""
    limited = min(max(x, _LEAST), _MOST)
    power = np.floor(limited * _LOG2_E + np.float32(0.5))
    r = limited - power * _LN2_HIGH - power * _LN2_LOW
    y = np.float32(1.9875691500e-4)
    y = y * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * r * r + r + np.float32(1)
    bits = (np.int32(power) + np.int32(127)) << np.int32(23)
    result: np.float32 = np.float32(y * of_bits(bits))  # type: ignore[call-arg]
    return result
