"""Start tools/datasets/convert.py as `python -m Datasets.convert`, without importing it: Datasets is a lower layer."""

if __name__ == "__main__":
    import runpy

    runpy.run_module("tools.datasets.convert", run_name="__main__")
