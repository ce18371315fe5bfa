"""TensorRT's Python package beside the double of TensorRT-LLM, which imports it: `tests.nvinfer`, in its place."""

import sys
import tempfile
from pathlib import Path

from tests import nvinfer

del sys.modules[__name__]
with tempfile.TemporaryDirectory(
    prefix="nvinfer"
) as _folder:  # what is loaded needs it no more, however a process ends
    nvinfer.load(Path(_folder))
