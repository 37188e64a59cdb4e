"""Plain SQL files, run forward in order of their numbers; see `harvest.hub.migrate`."""
