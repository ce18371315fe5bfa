"""`python -m scripts.bench.peers.convert {folder,BF16,Q8_0} GGUF OUTPUT`: other forms of a GGUF model.

Runs in the environment of transformers. All forms hold the values of the GGUF file, rounded to their own type.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


def main(form: str, source: Path, output: Path) -> None:
    if form == "folder":
        write_folder(source, output)
    else:
        write_gguf(source, output, gguf.GGMLQuantizationType[form])


def write_folder(source: Path, output: Path) -> None:
    """A Hugging Face folder in bfloat16."""
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    read = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    config = AutoConfig.from_pretrained(**where)
    # Another model, because one that was read from GGUF counts as quantized and cannot be saved.
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.save_pretrained(output)
    AutoTokenizer.from_pretrained(**where).save_pretrained(output)


def write_gguf(source: Path, output: Path, kind: gguf.GGMLQuantizationType) -> None:
    """The same file with its matrices in another type."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(output, architecture)
    _copy_metadata(reader, writer)
    writer.add_file_type({"BF16": gguf.LlamaFileType.MOSTLY_BF16, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}[kind.name])
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """All entries but those the writer makes itself."""
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = entry.types[0]
        inner = entry.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, entry.contents(), kind, sub_type=inner)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
