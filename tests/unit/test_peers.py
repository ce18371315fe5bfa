"""The pure parts of the comparison with other engines: order of runs, what is timed, ratios, the report."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from scripts.bench.peers import worker, workload
from scripts.bench.peers.catalogue import (
    ENGINES,
    ENVIRONMENTS,
    FORMS,
    OWN,
    chosen,
    environments_of,
    forms_of,
    slow_here,
)
from scripts.bench.peers.jobs import Answer, Job, Mode, Reading, Work
from scripts.bench.peers.measure import Matrix, turns
from scripts.bench.peers.records import Failure, Measurement, Run, parse
from scripts.bench.peers.report import Label, Spread, ratios, render
from scripts.bench.peers.setup import SetupFailed, refuse_gpu_packages, unusable
from trtspec.errors import ConfigError

RUN = Run(
    command="run measure",
    started="2026-01-01T00:00:00+00:00",
    threads=2,
    commit="abc",
    machine={
        "processor": "A processor",
        "cores": 2,
        "flags": ["avx2"],
        "memory_gib": 8.0,
        "copy_gb_per_s": 20.0,
        "read_gb_per_s": 15.0,
        "system": "Linux",
    },
)
LABELS = {"ours": Label("float32", True), "peer": Label("Q4_1", False)}


def measured(engine: str, number: int, speed: float, *, mode: str = "plain", concurrency: int = 1) -> Measurement:
    return Measurement(engine, mode, concurrency, number, 50, tokens=100, seconds=100 / speed, load_seconds=1.0)


def report(*records: Measurement | Failure) -> str:
    lines = [json.dumps({"kind": record.kind, **asdict(record)}) for record in (RUN, *records)]
    return render(parse(lines), LABELS)


def rows(text: str, title: str) -> list[str]:
    """The table rows of a section."""
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")]


def test_engines_alternate_within_a_setting_and_settings_within_a_round() -> None:
    matrix = Matrix(["trtspec", "openvino"], [Mode.PLAIN, Mode.PREFILL], (1, 8), rounds=2)
    order = [(turn.round, turn.mode.value, turn.concurrency, turn.engine) for turn in turns(matrix)]
    settings = [("plain", 1), ("plain", 8), ("prefill", 1)]
    assert order == [
        (number, *setting, engine) for number in (1, 2) for setting in settings for engine in ("trtspec", "openvino")
    ]


def test_an_engine_is_not_asked_for_what_it_cannot_do() -> None:
    matrix = Matrix(["transformers"], [Mode.PLAIN, Mode.SPECULATION], (1, 8), rounds=1)
    assert [(turn.mode, turn.concurrency) for turn in turns(matrix)] == [
        (Mode.PLAIN, 1),
        (Mode.PLAIN, 8),
        (Mode.SPECULATION, 1),
    ]


def test_ratios_are_taken_within_each_round() -> None:
    assert ratios({1: 10.0, 2: 30.0, 3: 5.0}, {1: 20.0, 2: 20.0, 4: 1.0}) == Spread(1.0, 0.5, 1.5)
    assert ratios({1: 10.0}, {2: 10.0}) is None


def test_the_report_shows_median_spread_and_ratio() -> None:
    text = report(
        *(measured("ours", number, speed) for number, speed in enumerate((20.0, 30.0, 60.0), 1)),
        *(measured("peer", number, speed) for number, speed in enumerate((40.0, 40.0, 40.0), 1)),
        measured("ours", 1, 80.0, concurrency=8),
    )
    figures = rows(text, "Plain decoding")
    assert figures[0] == "| engine | weights | 1 in flight | 8 in flight |"
    assert figures[2] == "| ours | float32 | 30.0 (20.0..60.0) | 80.0 |"
    assert figures[3] == "| peer | Q4_1 | 40.0 | – |"
    assert figures[-1] == "| peer | Q4_1 | 0.75 (0.50..1.50) | – |"
    assert "20.0 GB/s" in text and "`run measure`" in text


def test_a_figure_of_one_mode_is_in_no_other() -> None:
    text = report(measured("ours", 1, 40.0), measured("ours", 1, 0.5, mode="prefill"))
    assert rows(text, "Plain decoding")[2:] == ["| ours | float32 | 40.0 |"]


def test_the_report_shows_how_long_engines_load() -> None:
    assert rows(report(measured("peer", 1, 40.0)), "Loading")[2] == "| peer | Q4_1 | 1.0 |"


def test_the_time_to_a_first_token_is_in_milliseconds_and_less_is_better() -> None:
    text = report(measured("ours", 1, 200.0, mode="prefill"), measured("peer", 1, 100.0, mode="prefill"))
    assert rows(text, "First token of a long prompt")[2] == "| ours | float32 | 500 |"
    assert rows(text, "First token of a long prompt")[-1] == "| peer | Q4_1 | 0.50 |"
    assert "ours / peer (less is better):" in text


def test_what_failed_is_told() -> None:
    text = report(measured("ours", 1, 1.0), Failure("peer", "no wheel"), Failure("ours", "late", "plain", 8, 2))
    assert "- peer FAILED: no wheel" in text
    assert "- ours plain concurrency 8 round 2 FAILED: late" in text


def test_results_without_their_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="begin with a run"):
        parse([])


class Clock:
    """An engine whose time is counted: 1 s for a prompt token, 10 s for a generated one after the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.done: list[Work] = []
        monkeypatch.setattr(worker.time, "perf_counter", lambda: self.now)

    def generate(self, work: Work) -> int:
        self.done.append(work)
        self.now += sum(len(prompt) + 10.0 * (work.max_new_tokens - 1) for prompt in work.prompts)
        return work.max_new_tokens * len(work.prompts)


def job(mode: Mode, prompts: list[list[int]], max_new_tokens: int) -> Job:
    return Job("none", "model", {}, mode, 1, 2, prompts, [[1]], max_new_tokens, [0])


def test_throughput_is_timed_over_all_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    readings = worker.measure(job(Mode.PLAIN, [[1] * 3, [1] * 5], 4), clock.generate)
    assert readings == [Reading(prompt_tokens=4, tokens=8, seconds=68.0)]
    assert not clock.done[0].ignore_eos


def test_a_context_is_measured_without_its_prefill_and_never_twice_with_one_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    prompts = [[index] * length for length in (50, 7) for index in range(4)]
    readings = worker.measure(job(Mode.CONTEXT, prompts, 6), clock.generate)
    assert readings == [Reading(7, 5, 50.0), Reading(50, 5, 50.0)]
    used = [tuple(prompt) for work in clock.done for prompt in work.prompts]
    assert len(set(used)) == len(used) == 8


def test_prefill_is_the_median_of_single_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    readings = worker.measure(job(Mode.PREFILL, [[1] * 9, [1] * 2, [1] * 5], 1), clock.generate)
    assert readings == [Reading(prompt_tokens=5, tokens=1, seconds=5.0)]


def words(text: str) -> list[int]:
    """A tokenizer: one id a word between those of a template, as a chat has them."""
    return [-1, *(sum(map(ord, word)) for word in text.split()), -2, -3]


TEXTS = ["one fine day", "two birds", "three green apples on a tree"]


@pytest.mark.parametrize("mode", [Mode.PREFILL, Mode.CONTEXT])
def test_long_prompts_have_their_exact_length_begin_differently_and_end_as_chats_do(mode: Mode) -> None:
    texts = [f"{index} {text}" for index, text in enumerate(TEXTS * 2)]
    load = workload.workload(mode, texts, words)
    lengths = [len(prompt) for prompt in load.prompts]
    assert lengths == ([1000] * 5 if mode is Mode.PREFILL else [64] * 6 + [1000] * 6)
    assert all(prompt[-2:] == [-2, -3] for prompt in load.prompts)
    for first, second in itertools.combinations(load.prompts, 2):
        assert first[1] != second[1] or len(first) != len(second)


def test_warm_up_prompts_are_in_no_workload() -> None:
    warm = workload.warm_up(words)
    assert len({tuple(prompt) for prompt in warm}) == workload.WARM_UPS == 16
    texts = workload.read_prompts()
    assert len(texts) == 16
    assert not {tuple(words(text)) for text in texts} & {tuple(prompt) for prompt in warm}


def test_jobs_and_answers_survive_the_way_to_a_worker() -> None:
    sent = job(Mode.CONTEXT, [[1, 2]], 3)
    assert Job.from_json(sent.to_json()) == sent
    answer = Answer([Reading(1, 2, 0.5)], 3.5, {"torch": "2"})
    assert Answer.from_json(answer.to_json()) == answer


def test_every_engine_of_the_catalogue_can_be_set_up() -> None:
    adapters = Path(worker.__file__).parent / "adapters"
    for engine in ENGINES.values():
        assert engine.environment in {OWN, *ENVIRONMENTS}
        assert (adapters / f"{engine.adapter}.py").is_file()
    assert {FORMS[form].environment for form in forms_of(ENGINES.values())} <= {OWN, *ENVIRONMENTS}


def test_a_form_comes_after_its_source() -> None:
    assert forms_of([ENGINES["openvino"]]) == ["hf-bf16", "ir-fp16"]
    assert environments_of([ENGINES["openvino"]]) == ["transformers", "openvino", "openvino_export"]
    assert forms_of([ENGINES["llama.cpp-q4_1"]]) == []


def test_an_engine_without_its_parts_is_named_with_the_reason() -> None:
    engines = chosen(["openvino", "llama.cpp-q4_1"])
    assert unusable(engines, {"openvino": "no wheel"}) == {"openvino": "openvino: no wheel"}
    assert unusable(engines, {"ir-fp16": "export failed"}) == {"openvino": "ir-fp16: export failed"}


def test_unknown_engines_are_refused() -> None:
    with pytest.raises(ConfigError, match="names nobody; known are trtspec,"):
        chosen(["nobody"])


def test_engines_that_would_emulate_are_skipped_unless_asked_for() -> None:
    engines = chosen(["vllm", "vllm-float32", "transformers"])
    assert set(slow_here(engines, ["transformers"], {"avx2"})) == {"vllm"}
    assert slow_here(engines, [], {"avx2", "avx512_bf16"}) == {}


def test_packages_for_gpus_are_refused() -> None:
    refuse_gpu_packages(["torch", "numpy"])
    with pytest.raises(SetupFailed, match="nvidia-cublas"):
        refuse_gpu_packages(["torch", "nvidia-cublas"])
