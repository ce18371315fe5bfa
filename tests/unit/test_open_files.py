"""Room for connections."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from trtspec.service.open_files import raise_limit
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
for _ in range(2):
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""


def test_a_server_takes_as_many_open_files_as_it_may_have() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
