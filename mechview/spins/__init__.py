"""Spin models: solvers, and the correspondence between a transformer's blocks and a vector-spin system."""
