"""pydantic-ai: Agent.run of Pydantic AI, over Chat Completions."""
