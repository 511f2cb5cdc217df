"""Look at what a graph computes: values, pictures of graphs, and traces."""
