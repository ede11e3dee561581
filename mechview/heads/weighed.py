"""Metrics from weights alone, for the registry."""

from __future__ import annotations
