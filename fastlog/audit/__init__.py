"""The audit: who sent how much, who counted how much, and where the two differ. See docs/audit.md."""
