"""Start tools/datasets/verify.py as `python -m Datasets.verify`, without importing it: Datasets is a lower layer."""

if __name__ == "__main__":
    import runpy

    runpy.run_module("tools.datasets.verify", run_name="__main__")
