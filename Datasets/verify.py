"""Run tools/datasets/verify.py for `python -m Datasets.verify`. An import is not allowed: tools is a higher layer."""

if __name__ == "__main__":
    import runpy

    runpy.run_module("cnn_harness.tools.datasets.verify", run_name="__main__")
