"""One decision of one run, the same for every mode of taking work.

    load      what a run and its mail look like in the hub
    decide    feed arrivals to the code, collect what it asked for        -> Draft
    rows      what a Draft writes in the owner's one statement            -> Batch
    residents which suspended runs stay in memory

The order is the safety: arrivals are ingested in the commit that also writes what they caused, and
effects (activities, wakes, answers) leave only after that commit. A draft whose commit failed has moved its
instance past the durable state, so the instance is dropped and the arrivals are offered again.
"""
