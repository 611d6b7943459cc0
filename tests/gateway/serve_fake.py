"""`branchline serve` over the scripted runtime: a script that takes the command's flags."""

from __future__ import annotations

import sys
from pathlib import Path

from branchline import launcher
from branchline.runtime.cli import main

launcher.SERVER = (sys.executable, "-P", str(Path(__file__).parents[1] / "fake_runtime.py"))

if __name__ == "__main__":
    sys.exit(main(["serve", "toy", *sys.argv[1:]]))
