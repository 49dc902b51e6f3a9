"""A user's own, which must run with us and without us."""

import os

os.environ["THEIRS"] = "ran"
