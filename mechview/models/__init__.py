"""Where weights and activations come from."""
