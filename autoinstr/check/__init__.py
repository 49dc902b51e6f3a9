"""Do the maps still fit a release? Answered from its source, which is read and never imported."""
