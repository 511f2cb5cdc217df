"""Model implementations: one module for each architecture. hotshoe.families finds them by entry point."""
