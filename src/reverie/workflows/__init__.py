"""One algorithm each: given data, compute losses and update."""
