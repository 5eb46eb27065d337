"""langchain: create_agent of LangChain on LangGraph, over Chat Completions."""
