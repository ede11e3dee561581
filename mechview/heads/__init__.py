"""What heads are, from their weights and on text."""
