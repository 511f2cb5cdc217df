"""Graphs of tensors: how they are built, rewritten, split over devices, compiled and computed."""
