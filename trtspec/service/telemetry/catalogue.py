"""Every metric: its name, what it means, its labels and its buckets. Names are those that other servers use, too.

Families of requests are counted where clients are answered, and summed over all front-ends; those of the engine are
read in the one process that holds it. All have the labels of `COMMON`, which are put in front at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "trtspec_"
COMMON = ("model", "config_id")
"""Labels of every series: the model, and the first digits of the engine's id."""

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""The usual ones begin at 10 ms, above the times that speculation brings."""
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    """Without the prefix; of a counter also without `_total`."""
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in seconds; none makes it a counter."""


ARM = ("arm",)
SLICE = ("arm", "prompt_length", "output_length", "task", "sampling")

REQUESTS = Family("requests", "Requests that ended, by the status of their call.", (*ARM, "code"))
SUCCESS = Family(
    "request_success", "Requests that ended with OK, by why their first output ended.", (*ARM, "finished_reason")
)
ERRORS = Family("request_errors", "Requests that ended with an error, by its reason.", (*ARM, "reason"))
REJECTIONS = Family(
    "admission_rejections", "Requests that were turned away before the engine had them, by reason.", (*ARM, "reason")
)
MODES = Family(
    "spec_decode_requests",
    "Requests that reached the engine, by mode: spec, baseline, or fallback where drafts were asked for in vain.",
    (*ARM, "mode", "reason"),
)
PROMPT_TOKENS = Family("prompt_tokens", "Tokens of prompts.", ARM)
CACHED_TOKENS = Family("cached_prompt_tokens", "Tokens of prompts that the prefix cache had.", ARM)
GENERATION_TOKENS = Family("generation_tokens", "Tokens that clients got.", ARM)

PASSES = Family("decode_passes", "Target passes, one for each sequence in it, without prefill.", ARM)
DRAFTS = Family("spec_decode_num_drafts", "Spec steps: target passes that verified at least one drafted token.", ARM)
DRAFTED = Family("spec_decode_num_draft_tokens", "Drafted tokens that were verified; of a tree its depth.", ARM)
ACCEPTED = Family("spec_decode_num_accepted_tokens", "Drafted tokens that passed, bonus tokens not counted.", ARM)
EMITTED = Family("spec_decode_num_emitted_tokens", "Tokens of decode passes that clients got.", ARM)
NODES = Family("spec_decode_num_verified_nodes", "Nodes that were verified; of a chain its drafted tokens.", ARM)
REJECTED = Family("spec_decode_rejected_steps", "Spec steps that rejected a drafted token.", ARM)
STEPS = Family("spec_decode_steps", "Spec steps, by how many drafted tokens they accepted.", (*ARM, "accepted"))
ACCEPTED_AT = Family(
    "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens, by their position in the draft.", (*ARM, "position")
)
DRAFTED_AT = Family(
    "spec_decode_num_drafted_tokens_per_pos", "Drafted tokens, by their position in the draft.", (*ARM, "position")
)

SLICE_REQUESTS = Family("slice_requests", "Requests that ended with OK, by slice of the traffic.", SLICE)
SLICE_TOKENS = Family("slice_generation_tokens", "Tokens that clients got, by slice of the traffic.", SLICE)
SLICE_SECONDS = Family("slice_decode_seconds", "Time from first to last token, by slice of the traffic.", SLICE)
SLICE_DRAFTS = Family("slice_spec_decode_num_drafts", "Spec steps, by slice of the traffic.", SLICE)
SLICE_DRAFTED = Family("slice_spec_decode_num_draft_tokens", "Drafted tokens, by slice of the traffic.", SLICE)
SLICE_ACCEPTED = Family("slice_spec_decode_num_accepted_tokens", "Accepted tokens, by slice of the traffic.", SLICE)

LOG_DROPPED = Family("request_log_dropped_lines", "Lines of the request log that could not be written.")

FIRST_TOKEN = Family("time_to_first_token_seconds", "From the call to its first token.", ARM, FIRST_TOKEN_BUCKETS)
TOKEN_GAP = Family(
    "inter_token_latency_seconds",
    "Time for each token after the first ones: gaps shared by tokens.",
    ARM,
    TOKEN_BUCKETS,
)
CHUNK_GAP = Family(
    "inter_chunk_latency_seconds", "Gap between two arrivals of tokens from the engine.", ARM, TOKEN_BUCKETS
)
REQUEST_TOKEN_TIME = Family(
    "request_time_per_output_token_seconds", "Mean time for a token after the first, by request.", ARM, TOKEN_BUCKETS
)
E2E = Family("e2e_request_latency_seconds", "From the call to its end.", ARM, REQUEST_BUCKETS)
QUEUE_TIME = Family(
    "request_queue_time_seconds", "From the call to the engine's first work on it.", ARM, REQUEST_BUCKETS
)
PREFILL_TIME = Family("request_prefill_time_seconds", "From then to the first token.", ARM, REQUEST_BUCKETS)
DECODE_TIME = Family("request_decode_time_seconds", "From the first to the last token.", ARM, REQUEST_BUCKETS)
INFERENCE_TIME = Family("request_inference_time_seconds", "Both: prefill and decode.", ARM, REQUEST_BUCKETS)

OF_REQUESTS = (
    *(REQUESTS, SUCCESS, ERRORS, REJECTIONS, MODES, PROMPT_TOKENS, CACHED_TOKENS, GENERATION_TOKENS),
    *(PASSES, DRAFTS, DRAFTED, ACCEPTED, EMITTED, NODES, REJECTED, STEPS, ACCEPTED_AT, DRAFTED_AT),
    *(SLICE_REQUESTS, SLICE_TOKENS, SLICE_SECONDS, SLICE_DRAFTS, SLICE_DRAFTED, SLICE_ACCEPTED, LOG_DROPPED),
    *(FIRST_TOKEN, TOKEN_GAP, CHUNK_GAP, REQUEST_TOKEN_TIME),
    *(E2E, QUEUE_TIME, PREFILL_TIME, DECODE_TIME, INFERENCE_TIME),
)
BY_NAME: Mapping[str, Family] = {family.name: family for family in OF_REQUESTS}

RUNNING = Family("num_requests_running", "Requests that take part in passes now.")
WAITING = Family("num_requests_waiting", "Requests that wait for a place in the batch now.")
KV_USAGE = Family("kv_cache_usage_perc", "Share of the KV cache that is in use, 0 to 1.")
MAX_BATCH = Family("max_batch_size", "Requests that passes have room for.")
DEPTH = Family("spec_decode_max_draft_tokens", "Depth of drafts where a request names none; 0 is speculation off.")
UP = Family("engine_up", "1 while the engine answers requests, else 0.")
FRONTENDS = Family("frontends", "Processes that answer clients now.")
CERTIFICATE = Family("tls_certificate_expiry_timestamp_seconds", "When the server's certificate ends, Unix time.")
INFO = Family(
    "engine_info",
    "What is served; always 1.",
    ("method", "backend", "architecture", "dtype", "quantization", "version"),
)
GAUGES = (RUNNING, WAITING, KV_USAGE, MAX_BATCH, DEPTH, UP, FRONTENDS, CERTIFICATE, INFO)

ENGINE_PASSES = Family("engine_passes", "Passes of the engine, each over a whole batch.")
PREEMPTIONS = Family("num_preemptions", "Requests that lost their place to others and must begin again.")
RESTARTS = Family("engine_restarts", "Times that the engine's process died and was started again.")
OF_ENGINE = (ENGINE_PASSES, PREEMPTIONS, RESTARTS)
