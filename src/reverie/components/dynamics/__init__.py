"""Models of what comes next, apart from the representation that they predict."""
