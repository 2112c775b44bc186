"""Videos of episodes: the environment, what it hides, and what the policy remembers and expects."""
