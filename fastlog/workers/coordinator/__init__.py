"""The coordinator: the process that answers what today's protocol asks about topics, and later about groups."""
