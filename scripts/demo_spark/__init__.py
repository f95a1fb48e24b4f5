"""The demo of the pipeline: two datacenters, a mirror, an object store, and Spark, under kills all the time.

    send       in each datacenter a producer sends page views to the cluster there, tells of each batch that was
               acknowledged in a diary, and tells the audit how many they were
    mirror     brings both clusters' topics into the central one
    load       from there into a Delta table in an object store
    counts     page views by window of time into a table of its own; what is late into another
    audit      what producers told against what arrived, window by window
    kill       brokers and their processes, the mirror, the jobs of Spark with their Java machines, in an order that a
               seed chooses; the store stands still for a while
    check      each line that was acknowledged is in the table, and once; the windows have the same numbers
    page       rates, latency, counts against the audit, and the kills, as one HTML page

Everything has processes of its own, as when a user starts it.
"""
