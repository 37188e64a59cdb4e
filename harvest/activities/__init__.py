"""Running activities: at least once, with the result recorded exactly once.

    retry     whether and when to try again (pure)
    attempt   one try: its context, time-outs, heartbeats, threads
    local     steps without a task row, tried again in memory
    worker    eager tasks of this owner and tasks claimed from the queue
    sweeper   tasks that ran out of time, whoever held them

A result of this process goes straight to the decider when the run is owned here; otherwise it is written to
the task's row, guarded by worker and attempt, and the owner is woken.
"""
