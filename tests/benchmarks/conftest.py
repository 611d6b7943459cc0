"""The benchmarks are scripts in a folder, not a package: here the folder is put on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
