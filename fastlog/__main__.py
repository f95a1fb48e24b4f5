"""``python -m fastlog`` is the ``fastlog`` command."""

from fastlog.tools.cli import main

if __name__ == "__main__":
    main()
