from perf.ceiling.run import main

if __name__ == "__main__":
    main()
