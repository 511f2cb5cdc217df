"""Helpers shared by tests. Imported as ``tests.support.…``: the root of the repository is on the path of pytest."""
