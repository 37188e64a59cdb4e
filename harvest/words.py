"""Numbers as people read them, on the command line, in pages and in messages."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A length of time as people read it: `250 ms`, `1 h 30 min`, `3 d`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 worker`, `2 workers`; `many` where an s does not do."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
