"""Memory: gates, writes and retention of LSTMs, and the same quantities of a transformer's stream (SPIN.md, part D)."""
