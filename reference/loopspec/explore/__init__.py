"""Exploration: which scenarios a target is led through, and how much of the machine that was."""
