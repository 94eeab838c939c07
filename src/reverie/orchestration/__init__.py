"""When things happen: loop, phases, checkpoints, logging, evaluation."""
