"""Symbolic tensors, the ops that make them, and element types."""
