"""`python -m Datasets.verify` starts tools/datasets/verify.py, by name: no import of this folder leads up to the tools."""

if __name__ == "__main__":
    import runpy

    runpy.run_module("tools.datasets.verify", run_name="__main__")
