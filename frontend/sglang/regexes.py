"""The regular expressions that SGLang names for its dtypes."""

from __future__ import annotations

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""  # the quotes belong to it
REGEX_STRING = REGEX_STR  # as it was called once
# A character of a JSON string, and the string.
JSON_CHARACTER = r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))'
JSON_STRING = f'"{JSON_CHARACTER}*"'
