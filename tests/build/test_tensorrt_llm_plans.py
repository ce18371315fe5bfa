"""Dry runs for TensorRT-LLM, against plans that were written by hand from public sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.build import main
from tests.build.golden import CASES, ROOT, printed, read_case, write_drafter, write_model

FAMILIES = ("llama", "mistral", "qwen2", "deepseek")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each family, with a target and every drafter."""
    root = tmp_path_factory.mktemp("models")
    for family, configs in json.loads((ROOT / "models.json").read_text()).items():
        write_model(root / family / "target", configs["target"])
        if "draft" in configs:
            write_model(root / family / "draft_model", configs["draft"])
            for method in ("medusa", "eagle", "eagle3"):
                write_drafter(root / family / method, method, configs["target"])
    return root


def places(models: Path, name: str) -> dict[str, str]:
    family = next(family for family in FAMILIES if family in name.split("-"))
    arguments = (ROOT / "cases" / f"{name}.txt").read_text().partition("--method ")[2]
    method = arguments.split()[0]
    return {
        "target": str(models / family / "target"),
        "draft": str(models / family / method),
        "timing_cache": str(models / "timings"),
    }


@pytest.mark.parametrize("name", CASES)
def test_a_dry_run_prints_the_plan_that_was_written_by_hand(
    name: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = places(models, name)
    case = read_case(name, where)
    argv = ["--backend", "tensorrt_llm", "--target", where["target"], "--timing-cache", where["timing_cache"]]
    argv += ["--max-batch-size", "8", "--max-seq-len", "4096", "--dry-run", *case.arguments]
    if argv[argv.index("--method") + 1] in ("medusa", "eagle", "eagle3"):
        argv.append("--allow-unverified-target")  # published drafters do not name their target by identity
    code = main(argv)
    out, err = capsys.readouterr()
    if case.refused:
        assert code == 2
        assert [text for text in case.refused if text not in err] == [], err
    else:
        assert code == 0, err
        assert printed(out) == case.values


def test_the_plans_are_of_each_method_three_families_and_two_sizes() -> None:
    others = ("refused", "limits", "eagle-dynamic", "mtp-deepseek", "external")
    whole = {name for name in CASES if not name.startswith(others)}
    methods = ("none", "ngram", "draft_model", "medusa", "eagle", "lookahead", "eagle3", "mtp")
    both = (f"{method}-pytorch" for method in ("none", "ngram", "draft_model"))
    expected = {
        f"{method}-{family}-tp{tp}"
        for method in (*methods, *both)
        for family in ("llama", "mistral", "qwen2")
        for tp in (1, 2)
    }
    assert whole == expected
