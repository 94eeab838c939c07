"""What turns observations into latents and predicts the next ones."""
