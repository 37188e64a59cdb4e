"""The owner's loop: it replaces the claim loop.

    inbox    runs that have something to do, in claim order
    decider  takes what is ready, drives it, hands drafts to a commit lane
    lanes    commit connections: one statement for many drafts, retried, bisected, fenced
    effects  what leaves after a commit: activities, wakes, answers
    scan     looks one interval ahead in the hub, for what no wake told
    timers   fires at the millisecond, resident or not

While a lane's commit is in flight, the next batch gathers; no timer ever delays a batch. A run has at most
one decision in flight; batches of different lanes overlap. Driving happens in plain callbacks of the loop
(see `core.loop`), never inside a task.
"""
