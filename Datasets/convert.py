"""`python -m Datasets.convert` starts tools/datasets/convert.py, by name: no import of this folder leads up to the tools."""

if __name__ == "__main__":
    import runpy

    runpy.run_module("tools.datasets.convert", run_name="__main__")
