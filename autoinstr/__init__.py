"""OpenTelemetry traces and metrics for LLM post-training, with no change to the training code.

Kept empty of imports: `opentelemetry-instrument` imports this package in every process of a run.
"""

__version__ = "0.1.0"
