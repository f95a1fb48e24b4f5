"""Delta's and Iceberg's own code for Spark."""
