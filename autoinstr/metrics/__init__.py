"""Taps on logger functions, and the instruments that they feed."""
