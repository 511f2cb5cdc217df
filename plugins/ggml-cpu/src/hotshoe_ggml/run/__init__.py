"""Compiled graphs: build and allocate them, assign a unit to each node, and compute them."""
