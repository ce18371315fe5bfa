"""The documentation of the kernels shows the table that their specifications make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from plugins.specs import KERNELS, as_markdown
from tests.plugins.sample_specs import ROW_PARTS

SHOWN = Path(__file__).parents[2] / "scripts" / "docs" / "kernels.md"


def test_the_documentation_shows_the_table() -> None:
    _, _, after = SHOWN.read_text(encoding="utf-8").partition("<!-- kernels -->\n")
    shown, end, _ = after.partition("<!-- /kernels -->")
    assert end and shown == as_markdown() + "\n", "put the output of `python -m plugins.specs` there"
    assert all(f"| `{name}` |" in shown for name in KERNELS)


def test_the_module_prints_it() -> None:
    done = subprocess.run([sys.executable, "-m", "plugins.specs"], capture_output=True, text=True, check=True)
    assert done.stdout == as_markdown() + "\n"


def test_a_row_has_all_that_is_passed() -> None:
    assert as_markdown([ROW_PARTS]).splitlines()[2] == (
        "| `row_parts` | `logits` logits [rows, vocabulary]<br>`bias` float32 [rows] | vocabulary, lowest "
        "| `best` float32 [rows, parts]<br>`ids` int32 [rows, parts]<br>`copies` logits [rows, BLOCK] "
        "| rows × parts = ⌈vocabulary / BLOCK⌉ | BLOCK 256 | 2 |"
    )
