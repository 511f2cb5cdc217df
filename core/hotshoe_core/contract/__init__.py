"""The contract: what a plugin offers the loader, and what a backend author implements."""
