"""`sglang.srt.utils`, as far as programs import it."""

from __future__ import annotations

from typing import Any, NoReturn

from branchline.errors import InvalidRequest


def load_image(image_file: Any) -> NoReturn:
    """An image and its size. Refused: there are no models here that see."""
    raise InvalidRequest(f"load_image({image_file!r}): models that take images are not served yet")
