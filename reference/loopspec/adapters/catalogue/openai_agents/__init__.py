"""openai-agents: the Runner of the OpenAI Agents SDK, over Chat Completions."""
