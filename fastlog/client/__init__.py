"""What producers, consumers and commands share: addresses, connections, and asking a broker what it offers."""
