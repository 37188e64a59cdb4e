"""The `harvest` command. Human tables by default, `--json` everywhere, exit codes that scripts can trust:
0 done, 1 it failed, 2 it was asked wrongly (usage, configuration, a module that does not import)."""
