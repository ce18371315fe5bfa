"""The tokenizer of an engine as the SMG gateway fetches it: a zip archive of the files that its own loader reads."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from smg_grpc_proto.generated import common_pb2

from trtspec.service.servicer import Backend

_CHUNK_BYTES = 64 << 10
_GENERATION = "generation_config.json"


@dataclass(frozen=True, slots=True)
class TokenizerBundle:
    """An archive and its SHA-256."""

    data: bytes
    sha256: str

    @classmethod
    def of(cls, backend: Backend) -> TokenizerBundle:
        """Pack the files, and the ids that end a text, which the gateway cuts. Slow: call it off the event loop."""
        ends = {"eos_token_id": sorted(backend.model.defaults.eos_ids)}
        files = {**backend.tokenizer.files(), _GENERATION: json.dumps(ends).encode()}
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(files.items()):
                # An entry of its own has no time of writing, so that equal tokenizers have equal archives.
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        data = packed.getvalue()
        return cls(data, hashlib.sha256(data).hexdigest())

    def chunks(self) -> Iterator[Any]:
        """The archive in messages; the last one has the hash of the whole."""
        for begin in range(0, len(self.data), _CHUNK_BYTES):
            last = begin + _CHUNK_BYTES >= len(self.data)
            part = self.data[begin : begin + _CHUNK_BYTES]
            yield common_pb2.GetTokenizerChunk(data=part, sha256=self.sha256 if last else "")
