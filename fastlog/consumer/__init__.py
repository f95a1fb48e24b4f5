"""Reading topics from Python."""
