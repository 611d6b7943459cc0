"""Seeds derived from seeds, so that forks and choices differ and runs repeat."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *parts: int | str) -> int:
    """A seed in [0, 2**63) from `seed` and `parts`, each tagged with its type and length."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *parts):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> 1
