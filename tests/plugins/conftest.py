"""Kernels run on the CPU here, which Triton decides when it is first imported."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
