"""The kernels there are, by name; none of it needs Triton."""

from __future__ import annotations

from collections.abc import Mapping

from plugins.contract import KernelSpec

KERNELS: Mapping[str, KernelSpec] = {}
