"""Running graphs: building and allocating them, the unit of each node, and ggml's scheduler."""
