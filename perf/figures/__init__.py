"""The file that measurements are kept in, and how its figures are judged and written."""
