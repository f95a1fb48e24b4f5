"""One module for each request that the coordinator answers, with what each version added, and ``handle``."""
