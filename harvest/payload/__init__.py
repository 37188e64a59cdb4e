"""Values to JSON and back, checked against annotations by pydantic; the caps of R-12.

Rooms: `convert` (type adapters) · `caps`.
"""
