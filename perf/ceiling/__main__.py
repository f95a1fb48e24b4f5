from perf.ceiling.run import main
from perf.command import run

if __name__ == "__main__":
    run(main, "python -m perf.ceiling")
