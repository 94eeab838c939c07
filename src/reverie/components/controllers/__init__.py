"""What chooses actions, and what judges them."""
