"""A little asynchronous GRPO on real Ray, its actors written as NeMo RL writes them."""
