"""Kernels are interpreted on the CPU; Triton reads this once, when it is imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
