"""The span-map language: what a map says, read from YAML with its place in the file. Imports no OpenTelemetry."""
