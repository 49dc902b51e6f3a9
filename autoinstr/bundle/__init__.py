"""A folder with autoinstr and what it needs, for the path of environments that nothing can be installed into."""
