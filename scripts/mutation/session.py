"""What a run has found so far: a folder with one line for each outcome, so that a run that was interrupted goes on."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.mutation.mutants import Mutant
from scripts.mutation.running import Outcome, Trial


class Session:
    """Outcomes by the keys of mutants, the first of each and the last."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.reach_file = folder / "reach.json"
        self._file = folder / "trials.jsonl"
        self.first: dict[str, Trial] = {}
        self.last: dict[str, Trial] = {}
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            key, outcome, killer, seconds = json.loads(line)
            self._note(key, Trial(Outcome(outcome), killer, seconds))

    def keep(self, mutant: Mutant, trial: Trial) -> None:
        self._note(mutant.key, trial)
        line = json.dumps([mutant.key, trial.outcome.value, trial.killer, round(trial.seconds, 1)])
        with self._file.open("a") as file:
            file.write(line + "\n")

    def is_settled(self, mutant: Mutant, again: bool) -> bool:
        """It needs no trial; survivors do where there are new tests."""
        trial = self.last.get(mutant.key)
        return trial is not None and not (again and trial.survived)

    def _note(self, key: str, trial: Trial) -> None:
        self.first.setdefault(key, trial)
        self.last[key] = trial
