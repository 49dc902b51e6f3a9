"""Stands before the real one on a worker's path: there, autoinstr is not installed."""

raise ImportError("not installed here")
