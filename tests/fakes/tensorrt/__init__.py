"""TensorRT's Python package beside the double of TensorRT-LLM, which imports it: `tests.nvinfer`, in its place."""

import sys
import tempfile
from pathlib import Path

from tests import nvinfer

_FOLDER = tempfile.TemporaryDirectory(prefix="nvinfer")

del sys.modules[__name__]
nvinfer.load(Path(_FOLDER.name))._folder = _FOLDER  # type: ignore[attr-defined]  # goes when the process does
