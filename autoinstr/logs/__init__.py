"""Python's log records as OpenTelemetry's, with the trace and span they were made in. Off by default."""
