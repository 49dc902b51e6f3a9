"""Reading a run: what its journal says about phases, goodput and single steps."""
