"""Other brokers, measured in the same run with the same load, where they are installed."""
