"""The kernel: deterministic execution without I/O. Events in, commands out.

An `Instance` is one run of one workflow. `activate` feeds it the arrivals of one decision, runs the
code until it is blocked, and hands back the commands it issued. A decision is stored as its arrivals
followed by its commands; a cold replay feeds the very same batches, so warm and cold decide alike for
every shape of wait. Nothing in this package opens a socket, reads a clock or knows of Postgres.

Rooms: `events` (the vocabulary) · `program` (what a run is made of) · `loop` (the asyncio loop) · `arrivals`
(what each arrival does to a run) · `instance` (one run) · `replay` (history against code) · `lint` (what a
definition must not call).
"""
