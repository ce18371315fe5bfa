"""`python -m trtspec` is the `trtspec` command."""

import sys

from trtspec.cli.main import main

sys.exit(main())
