"""`harvest dev`: everything a developer needs, from one command, reloading on save."""
