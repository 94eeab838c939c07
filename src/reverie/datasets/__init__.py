"""Recorded episodes on disk, which runs can learn from without a simulator."""
