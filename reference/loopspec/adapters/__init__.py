"""Adapters: how a target is opened, prompted and watched, in process or in a child."""
