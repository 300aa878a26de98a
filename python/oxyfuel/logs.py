"""`OXYFUEL_LOG`, in the grammar of TORCH_LOGS: `+oxyfuel` says more, `oxyfuel` says what happens, `-oxyfuel` says errors alone.

Without it the logger `oxyfuel` is left to the program's own `logging`.
"""

from __future__ import annotations

import logging

from . import errors
from .errors import OxyfuelError

LEVELS = {"+oxyfuel": logging.DEBUG, "oxyfuel": logging.INFO, "-oxyfuel": logging.ERROR}


def setup(text: str) -> None:
    """Sets the level of the logger, and gives it a handler where the program has none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in LEVELS:
            raise OxyfuelError(errors.INVALID_OPTION, f"option `log` cannot be {text!r}", f"it takes {', '.join(LEVELS)}")
        logger = logging.getLogger("oxyfuel")
        logger.setLevel(LEVELS[word])
        if not logger.handlers and not logging.getLogger().handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            logger.addHandler(handler)
