"""The local record of a run: one folder per run, one file of OTLP JSON lines per process."""
