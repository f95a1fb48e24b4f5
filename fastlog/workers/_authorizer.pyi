"""The one place that every use of a topic passes, whatever the protocol."""

from fastlog.workers.authorization import Client, Operation, Rule

class Authorizer:
    """Decides for one processor; for all its threads."""

    def __init__(self, rule: Rule | None = None) -> None:
        """Without a rule, everybody may do everything."""

    def is_allowed(self, client: Client, operation: Operation, topic: str) -> bool:
        """Whether a client may do an operation on a topic. Not when the rule raises, which is logged."""

    def is_allowed_on_cluster(self, client: Client, operation: Operation) -> bool:
        """The same for the cluster itself."""

    def is_allowed_on_group(self, client: Client, operation: Operation, group: str) -> bool:
        """The same for a consumer group."""
