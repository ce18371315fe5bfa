"""What `build` makes of a model and its arguments, and what `Engine.save` writes (builder.py of 1.2.1).

Nothing is compiled: an engine file tells where its weights came from and what they hash to. What runs is the Hugging
Face folder, of which a copy lies beside it, and the tensors of a drafter: both may be gone when the engine is opened.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tensorrt_llm._double import network
from tensorrt_llm._double.checkpoint import EAGLE, MEDUSA, added_shapes
from tensorrt_llm._double.conversion import SOURCE
from tensorrt_llm._double.faults import planted
from tensorrt_llm._double.hugging_face import Source
from tensorrt_llm._double.splits import padded
from tensorrt_llm._types import lookup

VERSION = "1.2.1"
ENGINE, DRAFTER, MODEL = "rank{}.engine", "rank{}.double.safetensors", "double_model"
_EAGLE_BATCH, _EAGLE_DRAFT = 512, 256


def build(model: Any, build_config: Any) -> Any:
    """The rules of upstream's builder; the caller's configuration stays as it is."""
    build, config, near = copy.deepcopy(build_config), model.config, "tensorrt_llm.builder."
    mode = build.speculative_decoding_mode.name
    if planted("BUILD_ERROR", config.mapping.rank):
        raise RuntimeError("Engine building failed, please check the error log.")
    _check_mode(mode, config.architecture)
    _settle_plugins(build, config)
    if build.kv_cache_type is None:
        build.kv_cache_type = lookup("KVCacheType", near).PAGED
    if build.max_seq_len is None:
        build.max_seq_len = config.max_position_embeddings
    _settle_lengths(build, config, mode)
    if mode == "EAGLE":
        assert build.max_batch_size <= _EAGLE_BATCH, "Max batch size > 512 is not supported for EAGLE"
        assert build.max_draft_len <= _EAGLE_DRAFT, "Max draft len > 256 is not supported for EAGLE"
        assert config.mapping.pp_size == 1, "EAGLE does not support pipeline parallelism"
        build.plugin_config.use_paged_context_fmha = True
    _check_timing_cache(build)
    engine_config: Any = lookup("EngineConfig", near)
    engine: Any = lookup("Engine", near)
    if config.mapping.rank == 0:
        Path(build.output_timing_cache).write_bytes(b"timings of the double")
    outputs = _outputs(model, build)
    content = None if build.dry_run else _Content(model, outputs)
    return engine(engine_config(config, build, VERSION), content)


class _Content:
    """In place of compiled bytes."""

    def __init__(self, model: Any, outputs: dict[str, Any]) -> None:
        mapping = model.config.mapping
        self.facts = {
            "double": 1,
            "hugging_face": model.config.to_dict()[SOURCE],
            "model_class": type(model).__name__,
            "rank": mapping.rank,
            "tensors": model._hashes,
            "outputs": outputs,
        }
        added = dict(added_shapes(model.config.to_dict(), mapping.tp_size))
        self.drafter = {name: model._tensors[name] for name in added}


def _outputs(model: Any, build: Any) -> dict[str, Any]:
    """What the network marks beside the logits. Models that draft have outputs of their own, which nobody asks for."""
    if not hasattr(model, "forward"):
        return {}
    mapping, width = model.config.mapping, padded(model.config.vocab_size, model.config.mapping.tp_size)
    sizes = {network.TOKENS: build.max_num_tokens, network.ROWS: build.max_batch_size}
    with network.making(model.config.dtype, width, sizes) as made:
        model.forward(input_ids=None, use_cache=True, last_token_ids=None)
    expected = "logits" if mapping.rank // mapping.tp_size == mapping.pp_size - 1 else "hidden_states_output"
    assert expected in made.outputs, f"the network does not mark {expected}"
    return {name: _output(array) for name, array in made.outputs.items() if name != expected}


def _output(array: network.Array) -> dict[str, Any]:
    """What the runtime copies for requests: a row of fixed size for each token."""
    assert array.shape[0] == network.TOKENS, "an additional output must have a row for each token"
    assert len(array.shape) == 2 and isinstance(array.shape[1], int), "rows of an additional output have a fixed size"
    return {"dtype": array.dtype, "columns": array.shape[1], "plugins": network.chain(array)}


def _check_mode(mode: str, architecture: str) -> None:
    """Speculative models and modes belong together."""
    needed = {"MEDUSA": MEDUSA, "EAGLE": EAGLE}.get(mode)
    assert needed is None or architecture == needed, f"mode {mode} needs {needed}, and the model is {architecture}"
    assert needed or architecture not in (MEDUSA, EAGLE), f"{architecture} needs its own mode, not {mode}"
    known = ("NONE", "DRAFT_TOKENS_EXTERNAL", "MEDUSA", "EAGLE", "LOOKAHEAD_DECODING")
    assert mode in known, f"the double has no mode {mode}"


def _settle_plugins(build: Any, config: Any) -> None:
    plugins = build.plugin_config
    plugins.dtype = config.dtype
    if not plugins.context_fmha or plugins.streamingllm:
        plugins.use_paged_context_fmha = False
    algo = config.quantization.quant_algo
    if algo is None or algo.name not in ("FP8", "W4A8_AWQ", "NVFP4"):
        plugins.use_fp8_context_fmha = False


def _settle_lengths(build: Any, config: Any, mode: str) -> None:
    """Speculative modes make room for drafts."""
    raw = config.to_dict()
    build.max_num_tokens = _num_tokens(build)
    if build.max_draft_len == 0:
        build.max_draft_len = raw.get("max_draft_len", 0)
    if mode == "MEDUSA":
        assert build.max_draft_len == raw["max_draft_len"], "max_draft_len differs from the checkpoint's"
    if mode != "NONE":
        assert build.max_draft_len > 0, f"max_draft_len has to be larger than 0 for {mode}"
        build.max_seq_len += build.max_draft_len + (raw["num_eagle_layers"] if mode == "EAGLE" else 0)
        build.max_num_tokens = max(build.max_num_tokens, build.max_batch_size * (build.max_draft_len + 1))
    build.max_input_len = min(build.max_input_len, build.max_seq_len)
    assert build.opt_batch_size <= build.max_batch_size, "opt_batch_size exceeds max_batch_size"


def _num_tokens(build: Any) -> int:
    """`check_max_num_tokens` of _common.py: more than all sequences have is none the better; a block is the least."""
    plugins = build.plugin_config
    least = plugins.tokens_per_block if plugins.context_fmha else build.max_input_len
    return int(max(min(build.max_num_tokens, build.max_seq_len * build.max_batch_size), least))


def _check_timing_cache(build: Any) -> None:
    given = build.input_timing_cache
    assert given is None or Path(given).is_file(), f"timing cache {given} does not exist"


def save(engine: Any, engine_dir: str) -> None:
    """One rank's files; the first rank's config is that of all."""
    directory, content = Path(engine_dir), engine.engine
    directory.mkdir(parents=True, exist_ok=True)
    rank = engine.config.pretrained_config.mapping.rank
    if rank == 0:
        (directory / "config.json").write_text(json.dumps(engine.config.to_dict(), indent=4))
    if content is None:
        return
    if rank == 0:
        Source(Path(content.facts["hugging_face"])).copy(directory / MODEL)
    (directory / ENGINE.format(rank)).write_text(json.dumps(content.facts, indent=1))
    if content.drafter:
        save_file(content.drafter, directory / DRAFTER.format(rank))
