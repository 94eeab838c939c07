"""Where rows live and how they are sampled."""
