"""What a training run knows, and its file: a run that was interrupted goes on from it as if nothing had been."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from builders.training import state_file
from builders.training.networks import Network
from trtspec.errors import ConfigError

_EMA = 0.999
"""Weights are averaged over about the last thousand steps; fewer at the beginning."""
NAME = "training.safetensors"


@dataclass
class Run:
    """The mutable state of a run."""

    network: Network
    optimizer: torch.optim.Optimizer
    average: dict[str, Tensor]
    """Of the weights, which is what is measured and kept."""
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Of training; what measuring took is not in it."""
    loss_sum: float = 0.0
    loss_steps: int = 0
    """Since the last measurement."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """A record for each measurement."""
    best: dict[str, Tensor] | None = None
    best_score: float = 0.0
    """Tokens per pass."""

    @classmethod
    def begin(cls, network: Network, learning_rate: float) -> Run:
        optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
        return cls(network, optimizer, _copy(network))

    @torch.no_grad()
    def follow(self) -> None:
        """Move the average towards the weights."""
        keep = min(_EMA, (1 + self.steps) / (10 + self.steps))
        for name, value in self.network.named_parameters():
            self.average[name].lerp_(value, 1 - keep)

    def save(self, directory: Path) -> None:
        """Write everything; the file appears whole or not at all."""
        optimizer = self.optimizer.state_dict()
        moments = {
            f"{index}.{key}": value for index, state in optimizer["state"].items() for key, value in state.items()
        }
        groups = {
            "network": _copy(self.network),
            "average": self.average,
            "optimizer": moments,
            "best": self.best or {},
        }
        plain = {name: getattr(self, name) for name in _PLAIN}
        state_file.write(directory / NAME, groups, {**plain, "param_groups": optimizer["param_groups"]})

    def resume(self, directory: Path) -> bool:
        """Take over what an earlier run saved here; false where there is nothing."""
        path = directory / NAME
        if not path.is_file():
            return False
        groups, plain = state_file.read(path)
        try:
            self.network.load_state_dict(groups["network"])
            self.optimizer.load_state_dict(
                {"state": _moments(groups.get("optimizer", {})), "param_groups": plain["param_groups"]}
            )
            for name in _PLAIN:
                setattr(self, name, plain[name])
            self.average = self._of_ours(groups["average"])
            self.best = self._of_ours(groups["best"]) if "best" in groups else None
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"{path} is not the state of this run ({reason}); remove it to begin again") from error
        return True

    def _of_ours(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights where the network has its own."""
        return {name: weights[name].to(parameter.device) for name, parameter in self.network.named_parameters()}


_PLAIN = ("steps", "tokens", "seconds", "loss_sum", "loss_steps", "history", "best_score")


def _moments(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """What the optimizer knows of each parameter, by its number."""
    found: dict[int, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        index, _, key = full.partition(".")
        found.setdefault(int(index), {})[key] = value
    return found


def _copy(network: Network) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}
