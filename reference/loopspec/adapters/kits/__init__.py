"""Kits: what an adapter in a child process is written with; one file each."""
