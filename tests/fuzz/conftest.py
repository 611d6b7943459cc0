"""The one target that all of this folder's tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .target import Target, target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("fuzz"), smollm2_path) as fuzzed:
        fuzzed.serves()
        yield fuzzed
