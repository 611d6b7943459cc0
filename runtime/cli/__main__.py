"""`python -m branchline.runtime.cli`, for where the console script is not on the path."""

from __future__ import annotations

import sys

from branchline.runtime.cli.commands import main

sys.exit(main())
