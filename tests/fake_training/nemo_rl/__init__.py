"""A stand-in for NeMo RL: its names, its timer labels, a training loop of our own. See ../README.md."""
