"""The one place that every use of a topic passes."""

from fastlog.workers.authorization import Client, Rule

class Authorizer:
    """Decides for one processor; for all its threads."""

    def __init__(self, rule: Rule | None = None) -> None:
        """Without a rule, everybody may do everything."""

    def is_allowed(self, client: Client, kind: int, topic: str) -> bool:
        """Whether a client may make a request of a kind on a topic. Not when the rule raises, which is logged."""
