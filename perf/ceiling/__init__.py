"""How fast the broker alone is: driven over one connection by a C program that costs it next to nothing."""
