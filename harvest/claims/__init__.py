"""Sticky mode: how work is taken where owner mode is off. Decisions are the same; only what may be decided differs.

    claims   the runs that this worker has claimed, and the fence that their commits carry
    claimer  claims due tasks in claim order, in batches, and hands them to the decider

A claim is one row of `workflow_tasks`: `worker_id` with a number that grows with each claim. The commit checks it; a park
ends it and pins the task to this worker for `sticky_timeout` (S-2), so that the next decision finds the run in memory. A
claim is kept while the worker has something of the run in its hands (local steps, its own eager tasks). A worker that dies
is fenced by its peers as in owner mode; its claims and pins are free at once.

| what happens | what holds |
| --- | --- |
| a wake comes while the run is decided | the poke raises `wakes`; the park sees another number and leaves the task due |
| a wake is lost | parked runs with unread mail are looked for once per scan interval |
| the answer of a claim is lost | claims that nobody knows of are given back after two looks |
| another worker decided meanwhile | the number of the last decision differs: what is in memory is dropped (S-3) |
| the hub is switched to owner mode | the tenure's row says so: no commit of a claim lands, and the guard lets none through |
"""
