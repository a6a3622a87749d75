"""Run tools/datasets/convert.py for `python -m Datasets.convert`. An import is not allowed: tools is a higher layer."""

if __name__ == "__main__":
    import runpy

    runpy.run_module("cnn_harness.tools.datasets.convert", run_name="__main__")
