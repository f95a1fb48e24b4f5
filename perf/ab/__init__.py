"""Two checkouts measured against each other, in turns: ``python -m perf ab CHECKOUT_A CHECKOUT_B``."""
