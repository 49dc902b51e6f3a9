"""Opening and ending spans: ids, attributes, buckets, scopes."""

GROUP_ATTRIBUTE = "autoinstr.group"
"""On the instrumentation scope: the span group, read by the journal and by the hang watch."""
