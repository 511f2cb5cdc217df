"""Workarounds for individual ggml libraries.

They are part of the engine, not of hotshoe-ggml-cuda and -vulkan: a set of libraries from another project
(`load_all(ggml=DIR)`) runs without these distributions, and needs the same workarounds. ``provider`` and ``open_units``
each have a table of them by the library's name. No other module depends on names of libraries.
"""
