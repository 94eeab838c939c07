"""Layers, output distributions, encoders and decoders."""
