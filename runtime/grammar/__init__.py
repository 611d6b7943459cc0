"""Constrained decoding: what a generation's text may be, as masks over the vocabulary.

Nothing here knows of requests, batches or the wire.
"""

from __future__ import annotations

from branchline.runtime.grammar.matcher import CompiledGrammar, Matcher

__all__ = ["CompiledGrammar", "Matcher"]
