"""Plain data of callers who know no annotations."""

from __future__ import annotations

import math
from typing import Any

from harvest.errors import PayloadError


def check_finite(where: str, value: Any, raw: bytes) -> None:
    """Raises `PayloadError` for a NaN or an infinity in what became `raw`: JSON has none (RFC 8259, 6), and null is another
    value. Not for code of workflows, whose histories have such nulls already."""
    if b"null" in raw and (bad := _not_finite(value)) is not None:
        raise PayloadError(
            where,
            f"has {bad}, and JSON has no such number",
            hint=f"call by the definition, or send the text {str(bad).title()!r} where a float is expected",
        )


def _not_finite(value: Any) -> float | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return None
    return next((bad for each in value if (bad := _not_finite(each)) is not None), None)
