"""Wakes: hints over LISTEN/NOTIFY, never the truth. They may be lost, merged or repeated.

`topics` (channels and payloads) · `router` (who in this process wants to know) · `listener` (the LISTEN
connection) · `notifier` (merged NOTIFYs after commits, on the pool, never in a decision's transaction) · `announcer` (tells
who watches where runs have got to).
"""
