"""The CPU: its threads, packed weights, fused products and hotshoe's kernels. Only ``open_units`` imports this."""
