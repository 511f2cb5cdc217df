"""Towers: encoders of pictures, one module for each kind of projector of GGUF's second file (mmproj)."""
