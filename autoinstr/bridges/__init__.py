"""Carrying context where Python does not."""
