"""Simulators in an interpreter of their own: how it is built, and adapters, each of which stands alone."""
