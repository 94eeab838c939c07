"""On which machine: device, random streams, optimiser."""
