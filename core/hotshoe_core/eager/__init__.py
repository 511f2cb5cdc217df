"""Backends that compute one op at a time, from a table of functions; the reference backend is one over NumPy."""
