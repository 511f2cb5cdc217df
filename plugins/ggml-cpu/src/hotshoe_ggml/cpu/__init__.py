"""What only the CPU has: threads, weights packed for our own product, kernels and their fusion."""
