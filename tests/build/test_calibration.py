"""Calibration: trees and draft vocabularies that given text decides, from flags to the manifest.

The heads here prefer tokens in a fixed order whatever the state is, so that ranks can be read off the text.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from builders.build import _recipe, main
from builders.checkpoint import open_checkpoint
from builders.choices import Choice
from builders.drafts import native
from builders.drafts.card import Card
from builders.flags import parser
from builders.identity import target_sha256
from builders.stages import finished_before
from tests.checkpoint_files import edit_weights
from tests.draft_files import HIDDEN, VOCABULARY, deepseek_tensors, write_eagle, write_eagle3, write_folder
from tests.models import tiny_llama
from trtspec import manifest
from trtspec.decoding.draft import Draft
from trtspec.decoding.proposer import LAST_HIDDEN, BatchView
from trtspec.decoding.proposers.medusa import MedusaProposer
from trtspec.executors.embedded.drafter_config import HEADS, DrafterConfig
from trtspec.manifest import Manifest
from trtspec.types import Method

Fails = Callable[..., str]
Tree = tuple[tuple[int, ...], ...]
ALLOW = "--allow-unverified-target"
WORDS = (40, 41, 42, 43, 44)
"""Ids that the text is made of."""
ORDERS = ((40, 41, 42, 43, 44), (41, 40, 43, 42, 44), (44, 42, 40, 41, 43))
"""What each head thinks likeliest, in order; all other tokens come after."""
ENDS = (0, 2)
"""<|endoftext|> and <|im_end|>, at which the target stops."""


def write_text(path: Path, count: int = 24, weights: Sequence[int] = (16, 8, 4, 2, 1), seed: int = 0) -> Path:
    """Answers of token ids drawn by weight, a few more often than others."""
    draws = random.Random(seed)
    lines = [{"prompt": [7, 8], "answer": draws.choices(WORDS, weights, k=9 + i % 4)} for i in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(path: Path) -> list[list[int]]:
    return [json.loads(line)["answer"] for line in path.read_text().splitlines()]


def write_heads(path: Path, orders: Sequence[Sequence[int]] = ORDERS) -> None:
    """Medusa heads whose blocks add 1000 to the first entry of the state, which alone their outputs read."""
    tensors: dict[str, Tensor] = {}
    for head, order in enumerate(orders):
        bias, output = torch.zeros(HIDDEN), torch.zeros(VOCABULARY, HIDDEN)
        bias[0] = 1000.0
        output[:, 0] = -torch.arange(VOCABULARY) - 100.0
        output[list(order), 0] = -torch.arange(len(order), dtype=torch.float32)
        tensors |= {f"{head}.0.linear.weight": torch.zeros(HIDDEN, HIDDEN), f"{head}.0.linear.bias": bias}
        tensors[f"{head}.1.weight"] = output / 100
    write_folder(path, {"medusa_num_heads": len(orders)}, tensors, "medusa_lm_head.safetensors")


def build(method: str, target: Path, output: Path, *argv: object, draft: Path | None = None) -> Manifest:
    command = ["--method", method, "--target", target, "--output", output, "--runner", "eager", *argv]
    assert main([str(item) for item in (*command, *(("--draft", draft) if draft else ()))]) == 0
    return manifest.read(output, verify=True)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    write_heads(folder := tmp_path_factory.mktemp("heads") / "heads")
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.jsonl")


@pytest.fixture
def calibrated(shared_folder: Path, heads: Path, text: Path, tmp_path: Path) -> Callable[..., Manifest]:
    """Builds the heads, calibrated on the text."""

    def run(*argv: object, output: str = "engine", file: Path = text) -> Manifest:
        flags = ("--calibration", file, ALLOW, *argv)
        return build("medusa", shared_folder, tmp_path / output, *flags, draft=heads)

    return run


def counted(said: Sequence[Sequence[int]], kept: Sequence[int] = WORDS) -> list[list[float]]:
    """By depth and rank, how often the word there has it, among places where all first guesses before were right."""
    orders = [[word for word in order if word in kept] for order in ORDERS]
    shares = []
    for depth, order in enumerate(orders):
        hits, reached = Counter[int](), 0
        for answer in said:
            for root in range(len(answer) - 1):
                coming = answer[root + 1 : root + 2 + depth]
                if coming[:depth] != [guesses[0] for guesses in orders[:depth]]:
                    continue
                reached += 1
                if len(coming) > depth and coming[depth] in order:
                    hits[order.index(coming[depth])] += 1
        shares.append([hits[rank] / reached for rank in range(len(WORDS))])
    return shares


def worth(tree: Tree, shares: Sequence[Sequence[float]]) -> float:
    return sum(math.prod(shares[depth][rank] for depth, rank in enumerate(path)) for path in tree)


def best_worth(shares: Sequence[Sequence[float]], nodes: int) -> float:
    """Of all trees of so many nodes, by trying them."""
    paths = [path for depth in range(1, len(shares) + 1) for path in itertools.product(range(3), repeat=depth)]
    trees: set[frozenset[tuple[int, ...]]] = {frozenset()}
    for _ in range(nodes):
        trees = {tree | {path} for tree in trees for path in paths if len(path) == 1 or path[:-1] in tree}
    return max(worth(tuple(tree), shares) for tree in trees)


@pytest.fixture(scope="module")
def first(shared_folder: Path, heads: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """An engine with a tree of four nodes."""
    output = tmp_path_factory.mktemp("first") / "engine"
    return build("medusa", shared_folder, output, "--calibration", text, "--tree-nodes", 4, ALLOW, draft=heads)


def test_tree_is_the_best_for_the_measured_heads(first: Manifest, text: Path) -> None:
    shares = counted(answers(text))
    tree = first.speculative.tree
    assert len(tree) == 4 and worth(tree, shares) == pytest.approx(best_worth(shares, 4))
    assert first.smoke["equal"] is True
    record = first.build["calibration"]
    assert (record["conversations"], record["answer_tokens"]) == (24, sum(map(len, answers(text))))
    assert record["tree_chosen"] is True
    for top, share in zip(record["heads"], shares, strict=True):
        assert (top["1"], top["4"]) == pytest.approx((share[0], sum(share[:4])), abs=1e-4)


def test_tokens_per_pass_are_those_of_a_walk(first: Manifest, text: Path) -> None:
    nodes, passes, tokens = set(first.speculative.tree), 0, 0
    for answer in answers(text):
        root = 0
        while root < len(answer) - 1:
            path: tuple[int, ...] = ()
            for order, word in zip(ORDERS, answer[root + 1 :], strict=False):
                if (*path, order.index(word)) not in nodes:
                    break
                path = (*path, order.index(word))
            passes, tokens, root = passes + 1, tokens + len(path) + 1, root + len(path) + 1
    assert first.build["calibration"]["tokens_per_pass"]["tree"] == pytest.approx(tokens / passes, abs=1e-4)


def test_tree_is_a_fact_of_the_engine(
    first: Manifest, calibrated: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    usual = calibrated()
    assert len(usual.speculative.tree) == 32 and usual.speculative.tree[:4] == first.speculative.tree
    assert json.loads(first.facts)["speculative"]["tree"] == [list(path) for path in first.speculative.tree]
    assert first.engine_id != usual.engine_id
    top, worth = usual.build["calibration"]["heads"][0], usual.build["calibration"]["tokens_per_pass"]
    printed = capsys.readouterr().out
    assert "a tree of at most 32 nodes" in printed
    assert f"right at first {100 * top['1']:.1f} %, among four {100 * top['4']:.1f} %\n" in printed
    assert f"{worth['tree']:.2f} tokens per pass expected; 32 nodes, chosen" in printed


def test_depth_that_is_asked_for_bounds_the_tree(calibrated: Callable[..., Manifest]) -> None:
    found = calibrated("--speculative-config", '{"method": "medusa", "num_speculative_tokens": 2}')
    assert max(map(len, found.speculative.tree)) == 2 and found.speculative.num_speculative_tokens == 2


def test_given_tree_stays_and_is_measured(
    first: Manifest, calibrated: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--speculative-config", '{"method": "medusa", "tree": [[0], [1], [0, 0]]}')
    found = calibrated(*asked, "--quantization", "int8")
    assert found.speculative.tree == ((0,), (1,), (0, 0))
    assert found.build["calibration"]["tree_chosen"] is False
    assert found.build["calibration"]["heads"] == first.build["calibration"]["heads"], "the order survives rounding"
    printed = capsys.readouterr().out
    assert "only measured, the tree being given" in printed and "3 nodes, given" in printed


def test_heads_that_are_never_right_stay_a_chain(
    shared_folder: Path, heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"prompt": [7], "answer": [100, 101, 102]}\n')
    found = build("medusa", shared_folder, tmp_path / "e", ALLOW, "--calibration", text, draft=heads)
    assert found.speculative.tree == () and found.build["calibration"]["tokens_per_pass"] == {"chain": 1.0}
    assert "no head was ever right, so drafts are chains" in capsys.readouterr().out


def test_without_calibration_the_build_says_how_to_get_a_tree(
    shared_folder: Path, heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = build("medusa", shared_folder, tmp_path / "e", ALLOW, draft=heads)
    assert found.speculative.tree == () and "calibration" not in found.build
    assert "drafts are chains; --calibration FILE.jsonl chooses one" in capsys.readouterr().out


def test_target_answers_what_the_text_leaves_open(shared_folder: Path, heads: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text('{"prompt": "what is 1?"}\n\n{"prompt": "count to 9", "answer": "1\u2028 2 3"}\n', encoding="utf-8")
    argv = (ALLOW, "--calibration", text, "--max-context-tokens", 64, "--draft-vocabulary", 20)
    found = build("medusa", shared_folder, tmp_path / "e", *argv, draft=heads)
    record = found.build["calibration"]
    assert record["conversations"] == 2 and record["answer_tokens"] > len("1 2 3") + 4
    assert not [name for name in found.artifacts if "features" in name or "answers" in name]


def expected_ids(text: Path, size: int) -> list[int]:
    """End ids, the most frequent, then the lowest."""
    counts = Counter(word for answer in answers(text) for word in answer)
    wanted = sorted(range(VOCABULARY), key=lambda token: (token not in ENDS, -counts[token], token))
    return sorted(wanted[:size])


def stored(engine: Path) -> dict[str, Tensor]:
    return dict(load_file(engine / "drafter.safetensors"))


def test_heads_keep_the_rows_of_the_most_frequent_tokens(
    calibrated: Callable[..., Manifest], heads: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted: list[Draft] = []
    propose = MedusaProposer.propose

    def watched(self: MedusaProposer, view: BatchView) -> Draft:
        drafted.append(propose(self, view))
        return drafted[-1]

    monkeypatch.setattr(MedusaProposer, "propose", watched)
    found = calibrated("--draft-vocabulary", 5, "--tree-nodes", 4)
    ids = expected_ids(text, 5)
    packed, whole = stored(tmp_path / "engine"), load_file(heads / "medusa_lm_head.safetensors")
    assert packed["token_ids"].tolist() == ids == [*ENDS, 40, 41, 42]
    assert all(torch.equal(packed[f"heads.{head}.head"], whole[f"{head}.1.weight"][ids]) for head in range(3))
    assert DrafterConfig.from_json(tmp_path / "engine" / "drafter.json").vocabulary_size == 5
    nodes = {int(t) for draft in drafted for row, n in zip(draft.tokens, draft.counts, strict=True) for t in row[:n]}
    assert nodes and nodes <= set(ids)
    assert found.smoke["equal"] is True
    said = answers(text)
    covered = sum(word in ids for answer in said for word in answer) / sum(map(len, said))
    assert found.build["calibration"]["draft_vocabulary"] == {"tokens": 5, "covers": pytest.approx(covered, abs=1e-4)}
    shares = counted(said, kept=ids)
    assert worth(found.speculative.tree, shares) == pytest.approx(best_worth(shares, 4))


@pytest.mark.parametrize(
    ("method", "head"),
    [("eagle", "none"), ("eagle3", "own"), ("mtp", "none"), ("draft_model", "own"), ("draft_model", "tied")],
)
def test_every_kind_of_drafter_is_cut(method: str, head: str, text: Path, tmp_path: Path) -> None:
    target = tiny_llama(tmp_path / "target", layers=8 if method == "eagle3" else 2)
    draft, whole = tmp_path / "draft", None
    if method == "eagle":
        write_eagle(draft)
    elif method == "eagle3":
        whole = write_eagle3(draft, None)["lm_head.weight"]
    elif method == "mtp":
        edit_weights(target, deepseek_tensors(2, 2))
    else:
        tiny_llama(draft, layers=1, seed=3, tie=head == "tied", vocab=320)
        whole = load_file(draft / "model.safetensors").get("lm_head.weight")
    argv = ["--calibration", text, "--draft-vocabulary", 12, *([ALLOW] if method.startswith("eagle") else [])]
    found = build(method, target, tmp_path / "e", *argv, draft=draft if draft.exists() else None)
    packed, ids = stored(tmp_path / "e"), expected_ids(text, 12)
    assert packed["token_ids"].tolist() == ids
    if head == "own":
        assert whole is not None and torch.equal(packed["head"], whole[ids])
    else:
        assert "head" not in packed
    assert DrafterConfig.from_json(tmp_path / "e" / "drafter.json").vocabulary_size == 12
    assert found.smoke["equal"] is True and "heads" not in found.build["calibration"]


def native_heads(path: Path, target: Path, **speculative: Any) -> None:
    """Heads over the rows of the target's output head for ten tokens."""
    config = DrafterConfig(HEADS, None, (LAST_HIDDEN,), 10, own_embedding=False, own_head=False, modules=2)
    tensors = {"token_ids": torch.arange(40, 50)}
    for head in range(2):
        tensors |= {
            f"heads.{head}.blocks.0.weight": torch.zeros(HIDDEN, HIDDEN),
            f"heads.{head}.blocks.0.bias": torch.zeros(HIDDEN),
        }
    sha256 = target_sha256(open_checkpoint(target))
    native.write(
        path, config, tensors, Card(Method.MEDUSA, sha256, "tiny", {"num_speculative_tokens": 2, **speculative})
    )


def test_tree_of_the_card_stays_unless_it_is_taken_away(
    fails: Fails, shared_folder: Path, text: Path, tmp_path: Path
) -> None:
    native_heads(tmp_path / "d", shared_folder, tree=[[3]])
    argv = ("--calibration", text, "--tree-nodes", 5)
    told = fails("--method", "medusa", "--target", shared_folder, "--draft", tmp_path / "d", *argv)
    assert "--tree-nodes is 5 and there is a tree of 1 nodes, the drafter's or" in told
    asked = ("--speculative-config", '{"method": "medusa", "tree": []}')
    found = build("medusa", shared_folder, tmp_path / "e", *argv, *asked, draft=tmp_path / "d")
    assert len(found.speculative.tree) == 5 and len(found.build["calibration"]["heads"]) == 2


@pytest.mark.parametrize(
    ("method", "argv", "words"),
    [
        ("medusa", ["--tree-nodes", 3], "--tree-nodes is 3 and there is no text"),
        ("medusa", ["--draft-vocabulary", 9], "--draft-vocabulary is 9 and there is no text"),
        ("medusa", ["--calibration", "TEXT", "--tree-nodes", 65], "--tree-nodes is 65; allowed is 1 to 64"),
        ("medusa", ["--calibration", "TEXT", "--tree-nodes", 0], "--tree-nodes is 0; allowed is 1 to 64"),
        ("medusa", ["--calibration", "TEXT", "--draft-vocabulary", 0], "--draft-vocabulary is 0; it must be"),
        ("medusa", ["--calibration", "TEXT", "--draft-vocabulary", 267], "is 267 and the target has 267 tokens"),
        ("medusa", ["--calibration", "absent.jsonl"], "--calibration absent.jsonl: no such file"),
        (
            "medusa",
            ["--calibration", "TEXT", "--tree-nodes", 3, "--speculative-config", '{"method": "medusa", "tree": [[0]]}'],
            "--tree-nodes is 3 and there is a tree of 1 nodes",
        ),
        ("eagle", ["--calibration", "TEXT"], "num_speculative_tokens, and dynamic_tree for a tree"),
        ("eagle", ["--calibration", "TEXT", "--tree-nodes", 8, "--draft-vocabulary", 9], "the method is eagle"),
        ("ngram", ["--calibration", "TEXT"], "--calibration is for methods that have a drafter"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    method: str, argv: list[Any], words: str, fails: Fails, shared_folder: Path, heads: Path, text: Path, tmp_path: Path
) -> None:
    write_eagle(tmp_path / "eagle")
    draft = {"medusa": ["--draft", heads, ALLOW], "eagle": ["--draft", tmp_path / "eagle", ALLOW], "ngram": []}[method]
    flags = [text if item == "TEXT" else item for item in argv]
    told = fails("--method", method, "--target", shared_folder, "--output", tmp_path / "e", *draft, *flags)
    assert words in told and not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"no json\n", "text.jsonl: line 1 is not JSON"),
        (b'{"prompt": "a"}\n{"text": "a"}\n', 'text.jsonl: line 2 has no "prompt"'),
        (b"\xff\xfe\n", "text.jsonl is not a text file"),
        (b"", "text.jsonl is empty"),
        (b'{"prompt": [1], "answer": [267, 1]}\n', "line 1: prompt and answer must both be"),
        (b'{"prompt": [1], "answer": [5]}\n', "gave no answer of at least 2 tokens"),
    ],
)
def test_bad_text_is_refused_by_its_flag(
    content: bytes, words: str, fails: Fails, shared_folder: Path, heads: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.jsonl").write_bytes(content)
    argv = ("--method", "medusa", "--target", shared_folder, "--draft", heads, ALLOW, "--output", tmp_path / "e")
    told = fails(*argv, "--runner", "eager", "--calibration", tmp_path / "text.jsonl")
    assert told.startswith("error: --calibration") and words in told
    assert not (tmp_path / "e").exists() and not (tmp_path / "e.building").exists()


def test_reduced_drafters_are_not_reduced_again(fails: Fails, shared_folder: Path, text: Path, tmp_path: Path) -> None:
    native_heads(tmp_path / "d", shared_folder)
    argv = ("--method", "medusa", "--target", shared_folder, "--draft", tmp_path / "d", "--output", tmp_path / "e")
    told = fails(*argv, "--calibration", text, "--draft-vocabulary", 5)
    assert "--draft-vocabulary is 5" in told and "drafts 10 tokens already" in told


def test_vocabulary_can_end_every_text(
    fails: Fails, heads: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tiny_llama(tmp_path / "target", generation={"eos_token_id": [0, 1, 2]})
    capsys.readouterr()  # transformers draws a bar
    argv = ("--method", "medusa", "--target", target, "--draft", heads, ALLOW, "--output", tmp_path / "e")
    told = fails(*argv, "--calibration", text, "--draft-vocabulary", 2)
    assert "--draft-vocabulary is 2 and 3 tokens end a text" in told


def test_rerun_watches_text_and_flags(shared_folder: Path, heads: Path, text: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(text.read_bytes())
    base = ("--method", "medusa", "--target", shared_folder, "--draft", heads, "--output", tmp_path / "e", ALLOW)

    def is_done(*argv: object, file: Path = mine) -> bool:
        flags = (*base, "--runner", "eager", "--calibration", file, *argv)
        return (
            finished_before(_recipe(parser().parse_args([str(item) for item in flags]), Choice("embedded", "")))
            is not None
        )

    build("medusa", shared_folder, tmp_path / "e", "--calibration", mine, "--tree-nodes", 4, ALLOW, draft=heads)
    assert is_done("--tree-nodes", 4) and not is_done("--tree-nodes", 5)
    assert not is_done("--tree-nodes", 4, "--draft-vocabulary", 9)
    assert is_done("--tree-nodes", 4, file=text), "the same content elsewhere"
    write_text(mine, weights=(1, 2, 4, 8, 16))
    assert not is_done("--tree-nodes", 4)
