"""The HTTP side: OpenAI routes, status, metrics, and the one place where errors become HTTP answers (spec 11)."""
