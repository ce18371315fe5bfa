"""Whether a request that was fetched may run, and as what: the checks of the executor's thread (llmRequest.cpp).

Almost nothing is refused: what a mode does not have is dropped, or breaks the step for all that are in it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tensorrt_llm._double.additional import logits_after
from tensorrt_llm._double.errors import assertion, thrown
from tensorrt_llm._double.faults import Faults
from tensorrt_llm._double.guided import guide_of
from tensorrt_llm._double.opening import Opened
from tensorrt_llm._double.reuse import Reuse
from tensorrt_llm._double.sampling import Asked, Fatal, Refused, sampling_of
from tensorrt_llm._double.sequence import Group, Sequence
from tensorrt_llm._double.splits import padded
from tensorrt_llm._double.verified import Verified, are_certain, check_logits, drafted_tokens

from trtspec.types import Request, SamplingParams

_TOO_LONG = (
    "Prompt length ({}) exceeds maximum input length ({}). "
    "Set log level to info and check TRTGptModel logs for how maximum input length is set"
)
_NO_ROOM = "Input length ({}) + max new tokens ({}) + draft tokens ({}) must be less than max sequence length ({})."
_CONTEXT_LOGITS = "Return context logit need to build engine with gather_context_logits"
_GENERATION_LOGITS = "To return generation logits, gather_generation_logits must be enabled in ExecutorConfig"
_UTILIZATION = "Request sequence length is potentially greater than max input length."


class Admission:
    """Called with one request after another, from the loop's thread."""

    def __init__(self, opened: Opened, faults: Faults, reuse: Reuse) -> None:
        self._opened, self._faults, self._reuse = opened, faults, reuse
        self._seen = 0
        self._held = False
        self._guide: Any = None

    def admit(self, group: Group) -> list[Sequence]:
        self._seen += 1
        request, folder = group.request, self._opened.folder
        if self._faults.refuses(self._seen):
            raise Refused(thrown("This request is refused by a planted fault"))
        self._check(request)
        max_tokens = self._clamped(request)
        group.fatal = self._opened.fatal
        self._check_step(request)
        vocabulary = folder.pretrained["vocab_size"]
        typical = folder.mode == "EAGLE" and _typical(self._opened.config)
        logits = partial(logits_after, folder.hugging_face, request.input_token_ids)
        self._held = self._held or bool(request.sampling_config.min_tokens)
        sampling = sampling_of(folder.mode, Asked(request, max_tokens, vocabulary, logits, typical, self._held))
        self._guide = guide_of(request, self._opened.config.guided_decoding_config, self._opened.vocabulary)
        self._count_reuse(group)
        return [self._sequence(group, index, max_tokens, sampling) for index in range(group.count)]

    def _check(self, request: Any) -> None:
        """What refuses this request alone."""
        opened, output = self._opened, request.output_config
        vocabulary = padded(opened.folder.pretrained["vocab_size"], opened.folder.world_size)
        if request.end_id is not None and not -1 <= request.end_id < vocabulary:
            raise Refused(assertion(f"EndId ({request.end_id}) is not within acceptable range [-1, {vocabulary})."))
        if len(request.input_token_ids) > opened.max_input_len:
            raise Refused(thrown(_TOO_LONG.format(len(request.input_token_ids), opened.max_input_len)))
        if output.return_context_logits and not opened.folder.build["gather_context_logits"]:
            raise Refused(assertion(_CONTEXT_LOGITS))
        if output.return_generation_logits and not opened.config.gather_generation_logits:
            raise Refused(assertion(_GENERATION_LOGITS))
        if request.logits_post_processor_name == request.BATCHED_POST_PROCESSOR_NAME:
            raise Refused(assertion("Batched logits post processor is not defined."))
        if request.request_type.name != "REQUEST_TYPE_CONTEXT_AND_GENERATION":
            raise Refused(assertion(f"the double does not run {request.request_type.name}"))
        for wanted in output.additional_model_outputs or ():
            there = wanted.name in _declared(opened.config)
            if not there or not (opened.folder.speculative or wanted.name in opened.folder.outputs):
                raise Refused(assertion(f"Additional output tensor not found: {wanted.name}"))
        drafted, most = len(drafted_tokens(request)), opened.folder.draft_len
        if drafted > most:
            raise Refused(thrown(f"Draft tokens length ({drafted}) exceeds maximum draft tokens length ({most})."))
        longest = len(request.input_token_ids) + request.max_tokens - 1
        policy = opened.config.scheduler_config.capacity_scheduler_policy.name
        pauses = request.streaming and policy == "MAX_UTILIZATION" and not opened.config.enable_chunked_context
        if pauses and longest > opened.max_input_len:
            raise Refused(thrown(f"{_UTILIZATION} It is {longest}, and {opened.max_input_len} are allowed"))
        self._check_double(request)

    def _check_double(self, request: Any) -> None:
        """What plain engines have and the double does not."""
        if self._opened.folder.speculative:
            return
        output = request.output_config
        if request.sampling_config.beam_width > 1 or output.return_context_logits or output.return_generation_logits:
            raise Refused(assertion("the double has no beams and tells no logits"))

    def _clamped(self, request: Any) -> int:
        """As many tokens as there is room for, without a word; none is found out in the step."""
        prompt, folder = len(request.input_token_ids), self._opened.folder
        longest, drafts = folder.build["max_seq_len"], folder.draft_len
        room = longest - prompt - drafts
        if room < 1:
            raise Fatal(assertion(_NO_ROOM.format(prompt, room, drafts, longest)))
        return int(min(request.max_tokens, room))

    def _check_step(self, request: Any) -> None:
        """What breaks the step, for all requests that are in it."""
        opened, output = self._opened, request.output_config
        if not opened.folder.speculative:
            return
        if request.guided_decoding_params is not None:
            raise Fatal(assertion("the runtime would mask the first place of a draft alone"))
        if request.sampling_config.beam_width > 1:
            raise Fatal(assertion("Can't use speculative decoding with beam search."))
        if output.return_generation_logits:
            text = "Only speculative decoding with external draft tokens supports returning generation logits"
            raise Fatal(assertion(text))
        check_logits(request, padded(opened.folder.pretrained["vocab_size"], opened.folder.world_size))
        if output.return_context_logits:
            raise Fatal(assertion("Return context logits is not supported with Medusa and Lookahead decoding"))
        for wanted in output.additional_model_outputs or ():
            kind = "context" if wanted.gather_context else "generation"
            raise Fatal(assertion(f"Additional {kind} output tensor final index mismatch 1 != 2: {wanted.name}"))
        self._check_own_settings(request)

    def _check_own_settings(self, request: Any) -> None:
        """Settings of speculation that a request brings."""
        folder, decoding = self._opened.folder, self._opened.config.decoding_config
        if folder.mode == "EAGLE" and request.eagle_config is not None and request.eagle_config.eagle_choices:
            depth = max(map(len, request.eagle_config.eagle_choices))
            if depth != folder.pretrained["num_eagle_layers"]:
                text = "EAGLE-1 requires Eagle-tree depth being equal to the the number of build-time EAGLE layers."
                raise Fatal(assertion(text))
        if folder.mode == "LOOKAHEAD_DECODING" and request.lookahead_config is not None and decoding is not None:
            own, most = request.lookahead_config._sizes, decoding.lookahead_decoding_config
            if most is not None and any(mine > theirs for mine, theirs in zip(own, most._sizes, strict=True)):
                w, n, g = own
                limit = most.calculate_speculative_resource()[0]
                raise Fatal(assertion(f"runtime w({w}) n({n}) g({g}) exceeds maxTokensPerStep({limit})"))

    def _count_reuse(self, group: Group) -> None:
        prompt, salt = group.request.input_token_ids, group.request.cache_salt_id
        usable = (len(prompt) - 1) // self._reuse.block_tokens
        group.reused_blocks, group.reused_tokens = self._reuse.find(prompt, salt)
        group.missed_blocks = max(usable - group.reused_blocks, 0)
        group.new_blocks = -(-len(prompt) // self._reuse.block_tokens) - group.reused_blocks

    def _sequence(self, group: Group, index: int, max_tokens: int, sampling: SamplingParams) -> Sequence:
        request, limits = group.request, self._opened.machine.limits
        end = request.end_id if request.end_id is not None and request.end_id >= 0 else None
        speculative = self._opened.folder.speculative
        asked = Request(
            request_id=f"{group.id}.{index}",
            prompt=tuple(request.input_token_ids),
            max_tokens=max_tokens,
            sampling=sampling,
            seed=((request.sampling_config.seed or 0) + index) % 2**64,
            eos_ids=frozenset() if end is None else frozenset({end}),
            max_draft_tokens=limits.max_draft_tokens,
            guide=self._guide,
            logprobs=0 if request.output_config.return_log_probs and not speculative else None,
        )
        words = tuple(tuple(word) for word in request.stop_words or ())
        if draft := drafted_tokens(request)[: max(self._opened.max_input_len - len(request.input_token_ids), 0)]:
            asked = replace(asked, max_tokens=min(asked.max_tokens, len(draft) + 1))
            return Verified(group, index, asked, words, 0, draft=draft, certain=are_certain(request))
        return Sequence(group, index, asked, words, self._opened.step_drafts)


def _declared(config: Any) -> set[str]:
    return {declared.name for declared in config.additional_model_outputs or ()}


def _typical(config: Any) -> bool:
    eagle = config.decoding_config.eagle_config if config.decoding_config is not None else None
    return eagle is not None and not eagle.greedy_sampling
