"""The kernels there are, by name. A file of specs is one import and one entry here; none of it needs Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plugins import sampling_specs, verification_specs
from plugins.contract import KernelSpec

_FILES: Sequence[Sequence[KernelSpec]] = (sampling_specs.SPECS, verification_specs.SPECS)

KERNELS: Mapping[str, KernelSpec] = {spec.name: spec for file in _FILES for spec in file}
