"""Drafters say what a plain computation over each whole path says: through chunks, chains, trees and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.drafter_files import DRAFTERS, TARGET, Tensors, drafter_tensors, stored_as, target_tensors, write
from trtspec.decoding.draft import Draft
from trtspec.decoding.drafting import Drafter, DraftPlan, DraftRow
from trtspec.errors import EngineFolderError
from trtspec.executors.embedded import drafter_config, drafter_weights
from trtspec.executors.embedded.device import dense_bytes
from trtspec.executors.embedded.drafter_config import FEATURES, FUSED_FEATURES, HEADS, TOKENS, DrafterConfig
from trtspec.executors.embedded.drafter_weights import NetworkWeights, converted_network, load_drafter
from trtspec.executors.embedded.kernels.products import fits
from trtspec.executors.embedded.openvino.few_rows import network_widths
from trtspec.executors.embedded.runners import RUNNERS, Shape, StoredDrafter
from trtspec.executors.embedded.weights import Int8Weight, load_weights, widening

BLOCK_TOKENS = 32
TOLERANCE = 1e-4
"""Of logits about 5, in float32: another order of summation moves them by some 1e-5."""
LENGTHS = (1, 33, 7)
"""Of the rows' texts; one ends behind a block's edge."""
TREE = ((-1, -1, 0, 0, 2), (), (-1, 0, 1))
"""A tree, nothing, and a chain: the drafts of the rows."""
WITH_LAYERS = [name for name, config in DRAFTERS.items() if config.kind != HEADS]
WITHOUT = [name for name, config in DRAFTERS.items() if config.kind == HEADS]


@dataclass(frozen=True)
class Subject:
    """A drafter, and all that the plain computation needs."""

    config: DrafterConfig
    tensors: Tensors
    """The target's under `target.`."""
    drafter: Drafter


class Said(NamedTuple):
    logits: Tensor
    states: Tensor


def subject(folder: Path, name: str, runner: str, form: str = "float32") -> Subject:
    config, draws = DRAFTERS[name], torch.Generator().manual_seed(5)
    target, drafter = target_tensors(TARGET, draws), drafter_tensors(config, TARGET, draws)
    write(folder, config, stored_as(target, form), stored_as(drafter, form))
    return Subject(config, drafter | {f"target.{name}": item for name, item in target.items()}, opened(folder, runner))


def opened(folder: Path, runner: str) -> Drafter:
    shape = Shape(
        config=TARGET,
        dtype=torch.float32,
        device=torch.device("cpu"),
        positions=200,
        vocabulary_size=64,
        block_tokens=BLOCK_TOKENS,
        blocks=12,
        threads=1,
    )
    target = load_weights(folder, TARGET)
    config = DrafterConfig.from_json(folder / drafter_config.NAME)
    return RUNNERS[runner].create(shape, target, StoredDrafter(config, load_drafter(folder, config, target))).drafter


class Reference:
    """One module over a whole path, computed again from its beginning, with nothing cached and nothing batched."""

    def __init__(self, config: DrafterConfig, tensors: Tensors, module: int) -> None:
        self.config = config
        self.tensors = tensors
        self.prefix = "" if config.kind == TOKENS else f"modules.{module}."
        assert config.decoder is not None
        self.decoder = config.decoder
        embedding = tensors["embedding" if config.own_embedding else "target.embedding"]
        self.embedding = embedding
        head = tensors["head"] if "head" in tensors else embedding if config.tied else tensors["target.embedding"]
        if "token_ids" in tensors and "head" not in tensors:
            head = head[tensors["token_ids"]]
        self.head = head[: config.vocabulary_size]

    def part(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + self.decoder.rms_norm_eps).rsqrt() * self.part(name)

    def __call__(self, tokens: Sequence[int], states: Tensor) -> Said:
        """What is said after each token of a path."""
        e = self.embedding[list(tokens)]
        x, read = e, None
        if self.config.kind == FEATURES:
            if self.config.normalised_inputs:
                e, states = self.norm(e, "token_norm"), self.norm(states, "state_norm")
            x = torch.cat([e, states], 1) @ self.part("fuse").T + self.tensors.get(self.prefix + "fuse_bias", 0)
        elif self.config.kind == FUSED_FEATURES:
            normalised = self.norm(states, "layers.0.state_norm")
            read = torch.cat([self.norm(e, "layers.0.input_norm"), normalised], 1)
            x = normalised if self.config.norm_before_residual else states
        for index in range(self.decoder.num_layers):
            name = f"layers.{index}."
            bare = index == 0 and not self.config.first_input_norm
            if index or read is None:
                read = x if bare else self.norm(x, name + "input_norm")
            x = x + self.attend(name, read)
            gate, up = (self.norm(x, name + "post_norm") @ self.part(name + "gate_up").T).chunk(2, 1)
            x = x + (gate * gate.sigmoid() * up) @ self.part(name + "down").T
        last = self.norm(x, "norm") if self.config.final_norm else x
        return Said(last @ self.head.T, last if self.config.normalised_states else x)

    def attend(self, name: str, x: Tensor) -> Tensor:
        config, length = self.decoder, len(x)
        stacked = x @ self.part(name + "qkv").T + self.tensors.get(self.prefix + name + "qkv_bias", 0)
        heads = stacked.view(length, -1, config.head_dim)
        q, k, v = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads], 1)
        if config.qk_norm:
            q, k = self.norm(q, name + "query_norm"), self.norm(k, name + "key_norm")
        q, (k, v) = (
            self.turn(q),
            (item.repeat_interleave(config.num_heads // config.num_kv_heads, 1) for item in (k, v)),
        )
        scores = torch.einsum("qhd,khd->hqk", q, self.turn(k)) / math.sqrt(config.head_dim)
        future = torch.ones(length, length).triu(1).bool()
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -math.inf).softmax(-1), v)
        return mixed.reshape(length, -1) @ self.part(name + "output").T

    def turn(self, x: Tensor) -> Tensor:
        """Rotation as a product of complex numbers, position by position."""
        half = self.decoder.head_dim // 2
        speeds = self.decoder.rope_theta ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(len(x)).float(), speeds)
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
        return torch.cat([turned.real, turned.imag], -1)


class Story:
    """Three rows through three passes of one module: chunks, trees behind known tokens, then other known tokens."""

    def __init__(self, config: DrafterConfig) -> None:
        draws = torch.Generator().manual_seed(9)
        width = config.decoder.hidden_size if config.decoder else TARGET.hidden_size
        self.stateful = config.reads_states
        self.texts = [torch.randint(0, 64, (length + 8,), generator=draws).tolist() for length in LENGTHS]
        self.states = [torch.randn(length + 8, width, generator=draws) for length in LENGTHS]
        self.node_tokens = [torch.randint(0, 64, (len(parents),), generator=draws).tolist() for parents in TREE]
        self.node_states = [torch.randn(len(parents), width, generator=draws) for parents in TREE]
        self.blocks = [(7, 2), (3, 9), (5, 0)]

    def told(self, drafter: Drafter, module: int) -> list[Said]:
        """What the network says, pass by pass."""
        network = drafter.modules[module]
        said = []
        for first, last, scored, drafts in self.passes():
            rows = [
                DraftRow(text[begin:end], begin, blocks, min(scored, end - begin))
                for text, begin, end, blocks in zip(self.texts, first, last, self.blocks, strict=True)
                if begin < end
            ]
            going = [index for index, (begin, end) in enumerate(zip(first, last, strict=True)) if begin < end]
            nodes = [(self.node_tokens[i], TREE[i]) if drafts else ((), ()) for i in going]
            states = [
                torch.cat([self.states[i][first[i] : last[i]], self.node_states[i][: len(nodes[place][0])]])
                for place, i in enumerate(going)
            ]
            output = network.forward(
                DraftPlan(tuple(rows)), Draft.trees(nodes), torch.cat(states) if self.stateful else None
            )
            said.append(Said(output.logits.clone(), output.states.clone()))
        return said

    def expected(self, reference: Reference) -> list[Said]:
        """What each of these places has to hear."""
        said = []
        for first, last, scored, drafts in self.passes():
            places: list[tuple[Tensor, Tensor]] = []
            for i, (begin, end) in enumerate(zip(first, last, strict=True)):
                if begin == end:
                    continue
                known = reference(self.texts[i][:end], self.states[i][:end])
                places += list(zip(*known, strict=True))[end - min(scored, end - begin) :]
                for node in range(len(TREE[i]) if drafts else 0):
                    path = self.path(i, node)
                    tokens = [*self.texts[i][:end], *(self.node_tokens[i][step] for step in path)]
                    along = reference(tokens, torch.cat([self.states[i][:end], self.node_states[i][path]]))
                    places.append((along.logits[-1], along.states[-1]))
            said.append(Said(*(torch.stack(column) for column in zip(*places, strict=True))))
        return said

    def passes(self) -> list[tuple[Sequence[int], Sequence[int], int, bool]]:
        """Of each: where the rows begin and end, how many places are scored at most, and whether they draft."""
        half = [length // 2 for length in LENGTHS]
        return [
            ([0] * 3, half, 2, False),  # the first row does not take part
            (half, LENGTHS, 3, True),
            (LENGTHS, [length + 3 for length in LENGTHS], 1, True),  # drafted positions are written again
        ]

    def path(self, row: int, node: int) -> list[int]:
        parent = TREE[row][node]
        return [*(self.path(row, parent) if parent >= 0 else []), node]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", WITH_LAYERS)
def test_a_drafter_says_what_its_whole_path_says(tmp_path: Path, name: str, runner: str) -> None:
    it = subject(tmp_path, name, runner)
    story = Story(it.config)
    assert len(it.drafter.modules) == it.config.modules and it.drafter.features == it.config.features
    for module, network in enumerate(it.drafter.modules):
        assert network.positions == 200
        assert_ids(network.token_ids, it)
        for told, expected in zip(
            story.told(it.drafter, module), story.expected(Reference(it.config, it.tensors, module)), strict=True
        ):
            torch.testing.assert_close(told.logits, expected.logits, atol=TOLERANCE, rtol=TOLERANCE)
            torch.testing.assert_close(told.states, expected.states, atol=TOLERANCE, rtol=TOLERANCE)


def assert_ids(token_ids: Tensor | None, it: Subject) -> None:
    if "token_ids" in it.tensors:
        assert token_ids is not None and token_ids.equal(it.tensors["token_ids"])
    else:
        assert token_ids is None


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_features_come_to_states(tmp_path: Path, name: str, runner: str) -> None:
    it = subject(tmp_path, name, runner)
    features = torch.randn(5, TARGET.hidden_size * len(it.config.features), generator=torch.Generator().manual_seed(1))
    expected = features @ it.tensors["modules.0.fuse"].T if name == "eagle3" else features
    torch.testing.assert_close(it.drafter.modules[0].states(features), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("rows", [1, 5])
def test_heads_say_what_each_says_alone(tmp_path: Path, name: str, runner: str, rows: int) -> None:
    it = subject(tmp_path, name, runner)
    assert it.drafter.heads is not None and not it.drafter.modules
    assert_ids(it.drafter.heads.token_ids, it)
    states = torch.randn(rows, TARGET.hidden_size, generator=torch.Generator().manual_seed(2))
    shared = it.tensors["target.embedding"][it.tensors["token_ids"]]
    expected = []
    for head in range(it.config.modules):
        x = states
        for block in range(it.config.blocks):
            gate = (
                x @ it.tensors[f"heads.{head}.blocks.{block}.weight"].T
                + it.tensors[f"heads.{head}.blocks.{block}.bias"]
            )
            x = x + gate * gate.sigmoid()
        expected.append(x @ it.tensors.get(f"heads.{head}.head", shared).T)
    told = it.drafter.heads.forward(states)
    torch.testing.assert_close(told, torch.stack(expected, 1), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["mtp", "eagle3"])
def test_compiled_drafters_widen_what_is_stored(tmp_path: Path, name: str, form: str) -> None:
    eager, compiled = subject(tmp_path, name, "eager", form), opened(tmp_path, "openvino")
    story = Story(eager.config)
    for told, expected in zip(story.told(compiled, 0), story.told(eager.drafter, 0), strict=True):
        torch.testing.assert_close(told, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_compiled_heads_widen_what_is_stored(tmp_path: Path, form: str) -> None:
    eager, compiled = subject(tmp_path, "medusa", "eager", form).drafter.heads, opened(tmp_path, "openvino").heads
    states = torch.randn(3, TARGET.hidden_size, generator=torch.Generator().manual_seed(2))
    assert eager is not None and compiled is not None
    torch.testing.assert_close(compiled.forward(states), eager.forward(states), atol=TOLERANCE, rtol=TOLERANCE)


def test_a_drafter_shares_what_it_takes_from_the_target(tmp_path: Path) -> None:
    config, draws = replace(DRAFTERS["eagle"], vocabulary_size=64), torch.Generator().manual_seed(5)
    own = drafter_tensors(config, TARGET, draws)
    write(tmp_path, config, target_tensors(TARGET, draws), stored_as(own, "int8"))
    target = load_weights(tmp_path, TARGET)
    stored = StoredDrafter(config, load_drafter(tmp_path, config, target))
    added = dense_bytes((target, stored), torch.bfloat16) - dense_bytes(target, torch.bfloat16)
    assert added == 2 * sum(tensor.numel() for tensor in own.values())  # neither embedding nor head
    to = widening(torch.bfloat16, torch.device("cpu"))
    assert isinstance(stored.weights, NetworkWeights)
    plain = to.decoder(target)
    assert converted_network(stored.weights, to).embedding is plain.embedding is plain.head


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_rows_picked_from_the_targets_head_take_the_form_of_the_drafters_own_matrices(
    name: str, tmp_path: Path
) -> None:
    config, draws = DRAFTERS[name], torch.Generator().manual_seed(5)
    values, own = target_tensors(TARGET, draws), drafter_tensors(DRAFTERS[name], TARGET, draws)
    for form, kind in (("float32", Tensor), ("int8", Int8Weight)):
        write(tmp_path, config, values, stored_as(own, form))
        found = load_drafter(tmp_path, config, load_weights(tmp_path, TARGET))
        (head,) = [found.head] if isinstance(found, NetworkWeights) else found.outputs
        picked = values["embedding"][own["token_ids"]]
        assert isinstance(head, kind)
        dense = head.dense(torch.float32) if isinstance(head, Int8Weight) else head
        torch.testing.assert_close(dense, picked, atol=float(picked.abs().max()) / 250, rtol=0)


def test_kernels_are_asked_about_what_is_fused_too(tmp_path: Path) -> None:
    config = subject(tmp_path, "eagle3", "eager").config
    weights = load_drafter(tmp_path, config, load_weights(tmp_path, TARGET))
    assert isinstance(weights, NetworkWeights) and isinstance(weights.fusion, Tensor)
    decoder = config.caches[0]
    assert fits(*network_widths(decoder, weights))
    odd = replace(weights, fusion=weights.fusion[:, :-4])
    assert not fits(*network_widths(decoder, odd))


def test_a_drafter_goes_no_further_than_its_own_context(tmp_path: Path) -> None:
    config = replace(DRAFTERS["pruned model"], decoder=replace(TARGET, max_position_embeddings=150))
    draws = torch.Generator().manual_seed(5)
    write(tmp_path, config, target_tensors(TARGET, draws), drafter_tensors(config, TARGET, draws))
    assert [module.positions for module in opened(tmp_path, "eager").modules] == [150]


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(path.read_bytes()[:-200]), Path.unlink])
def test_a_damaged_drafter_is_an_engine_to_build_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    subject(tmp_path, "eagle", "eager")
    damage(tmp_path / drafter_weights.NAME)
    with pytest.raises(EngineFolderError, match=r"drafter\.safetensors cannot be read .*build the engine again"):
        opened(tmp_path, "eager")
    damage(tmp_path / drafter_config.NAME)
    with pytest.raises(EngineFolderError, match=r"drafter\.json is damaged .*build the engine again"):
        opened(tmp_path, "eager")
