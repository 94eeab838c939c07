"""Reverie: a laboratory for agents that learn a model of their world and learn to act inside it."""
