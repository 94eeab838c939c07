"""Weights and data from elsewhere."""
