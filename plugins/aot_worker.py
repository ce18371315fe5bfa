"""Compiles one kernel in a process of its own: `python -m plugins.aot_worker REQUEST ANSWER`, two JSON files.

Apart, so that no caller loads Triton, and so that interpreter mode, which a process chooses when it first imports
Triton, cannot meet the compiler. What is refused is the answer's `refused`; anything else that goes wrong is stderr's.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugins import ptx
from trtspec.errors import KernelError

PTX_VERSION = 87
"""8.7, the first that knows sm_120: drivers of CUDA 12.8 and later read it, whichever assembler Triton brings."""

_ABSENT = {
    "num_ctas": 1,
    "cluster_dims": (1, 1, 1),
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "tmem_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}
"""What TensorRT could not provide at a launch, with the value that says it is not needed."""


def main() -> int:
    """Read the request, write the answer."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        answer = compile_request(request)
    except KernelError as error:
        answer = {"refused": str(error)}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def compile_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compile, edit, and assemble what is left, so that nobody is given a text that does not hold."""
    compiled = _compile(request)
    metadata = compiled.metadata
    check_needs(request["function"], metadata)
    text = for_most_chips(ptx.expose(compiled.asm["ptx"], request["bits"]))
    entry = ptx.read_entry(text)
    block_x = 32 * metadata.num_warps
    if entry.threads not in (None, block_x):
        raise KernelError(f"{entry.name} demands blocks of {entry.threads} threads; its warps have {block_x}")
    shape = {"block_x": block_x, "shared_bytes": metadata.shared}
    return {"entry": entry.name, "ptx": text, "target": ptx.target(text), **shape}


def _compile(request: Mapping[str, Any]) -> Any:
    """Triton's result. Sums are not fused, so that each is rounded as in the eager twin."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(request["module"]), request["function"])
    signature, constants = request["signature"], request["constants"]
    expected = [*signature, *constants]
    if list(function.arg_names) != expected:
        raise KernelError(f"{request['function']} takes {function.arg_names}; its specification says {expected}")
    source = ASTSource(
        fn=function,
        signature={**signature, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
        attrs={(expected.index(name),): [["tt.divisibility", 16]] for name in request["multiples"]},
    )
    options = {"num_warps": request["num_warps"], "ptx_version": PTX_VERSION, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", request["architecture"], 32), options=options)


def check_needs(function: str, metadata: Any) -> None:
    """Refuse what asks for more than a grid, blocks and shared memory."""
    for name, value in _ABSENT.items():
        if (found := getattr(metadata, name, value)) != value:
            raise KernelError(f"{function} has {name} = {found}, which TensorRT's plugins have no place for")


def for_most_chips(specific: str) -> str:
    """The text for its own and all later chips, or for its own alone where it uses what only they have."""
    general = ptx.for_later_chips(specific)
    complaint = complaint_about(general)
    if complaint and general != specific:
        general, complaint = specific, complaint_about(specific)
    if complaint:
        raise KernelError(f"the assembler refuses the PTX for {ptx.target(general)}: {complaint[-1000:]}")
    return general


def complaint_about(text: str) -> str:
    """What the assembler of Triton's wheel says of a text; nothing, if all is well."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(text, encoding="utf-8")
        output = str(Path(folder, "kernel.cubin"))
        command = [assembler(), f"--gpu-name={ptx.target(text)}", str(path), "--output-file", output]
        done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip() or (f"exit code {done.returncode}" if done.returncode else "")


def assembler() -> str:
    """The newest of those in the wheel: some versions have a second one for later chips, which knows all chips."""
    from triton import knobs

    tool = getattr(knobs.nvidia, "ptxas_blackwell", None) or knobs.nvidia.ptxas
    return str(tool.path)


if __name__ == "__main__":
    sys.exit(main())
