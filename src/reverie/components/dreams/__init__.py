"""Learned models with the interface of a vector environment."""
