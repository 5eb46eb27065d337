"""The bench: plays the model and the tools, and records what the target does."""
