"""Agreement between processes that do not know each other: one small interface, today with ZooKeeper behind it.

What uses it is level-triggered: a watch only says that something changed; one worker then reads what is there and acts.
"""
