"""What turns Ray's own tracing on. The tracer provider is whatever the process has."""


def setup():
    pass
