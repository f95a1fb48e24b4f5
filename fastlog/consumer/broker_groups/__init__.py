"""Groups that a broker keeps: members by today's protocol, partitions dealt out by the one that leads."""
