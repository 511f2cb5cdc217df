"""What single libraries of ggml's need in addition.

It is part of the engine, not of hotshoe-ggml-cuda and -vulkan: a set of libraries that others have built
(`load_all(ggml=DIR)`) is driven without these distributions, and needs the same. ``provider`` and ``open_units`` have
one table each, by the library's name; nothing else asks for names.
"""
