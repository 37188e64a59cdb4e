"""The verbs, one per file: start, message, update, query, follow, describe.

Each works through the hub; where the owner of the run lives in this process, it takes the short way (no
mailbox row, no NOTIFY) and answers after the same commit. Clients, the CLI and the server translate into
these.
"""
