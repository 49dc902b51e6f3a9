"""Opening and ending spans: ids, attributes, buckets, scopes."""
