"""Runs Apache ZooKeeper's own server on a Java that is found here, for people who have none yet and for tests."""
