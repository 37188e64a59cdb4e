"""All 27,004 flights that left New York in January 2013, as durable workflows. Run it with `make demo`.

`flows.py` is the program: what a user of Harvest writes. `__main__.py` is the demonstration around it: it runs
the month, kills its own worker half-way, and checks the totals against the file.
"""
