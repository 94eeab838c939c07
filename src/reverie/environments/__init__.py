"""Simulators: one environment per suite file, and N of them side by side."""
