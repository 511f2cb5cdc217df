"""Model implementations, one module an architecture, each found by its entry point: see hotshoe.families."""
