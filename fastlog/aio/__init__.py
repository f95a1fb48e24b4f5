"""Clients for asyncio: ``Producer`` and ``Consumer``, on top of those that threads use.

Every call is made in the thread of one event loop, and nothing in it waits: sends go into the producer's queue, and
messages come out of what the consumer's threads have fetched. What has to wait for the network (the first send to a
topic, a flush, joining a group, a commit, the end) is done in a few threads of the client's own; there is none for a
message.

Any ``await`` may be cancelled. A message that was not queued yet is not sent then, and one that was is sent once; no
message of a consumer is lost or given twice; and the object can be used on. Errors are those of the other clients.
"""

from fastlog.aio.consumer import Consumer
from fastlog.aio.producer import Producer

__all__ = ["Consumer", "Producer"]
