"""What a decorator recorded about a function or class, and the registry a worker is built from.

Nothing registers itself at import: a worker, a replayer or a test names its definitions.
"""
